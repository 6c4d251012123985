//! Pages of lists: how many, and where the next one begins.

use data_encoding::BASE64URL_NOPAD;
use tidegate_core::Invalid;
use tonic::Status;

use crate::grpc::status;

const PAGE: usize = 100;
const LARGEST_PAGE: usize = 1000;

/// A page that was asked for: what it is of, and what comes before it.
pub(super) struct Page<'a> {
    list: &'static str,
    filter: &'a str,
    /// How many may be on it.
    length: usize,
    /// The last one on the page before.
    pub(super) after: Option<Place>,
}

/// Somebody in a list: a name, and two numbers where a name is not enough.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) name: String,
    pub(super) first: u64,
    pub(super) second: u64,
}

impl<'a> Page<'a> {
    pub(super) fn read(list: &'static str, filter: &'a str, length: u32, token: &str) -> Result<Self, Status> {
        let length = if length == 0 { PAGE } else { (length as usize).min(LARGEST_PAGE) };
        if token.is_empty() {
            return Ok(Self { list, filter, length, after: None });
        }
        let after = Place::read(list, filter, token).ok_or_else(|| {
            let allowed = "the next_page_token of a list with the same arguments".into();
            status::invalid_field(filter, Invalid { field: "page_token", allowed })
        })?;
        Ok(Self { list, filter, length, after: Some(after) })
    }

    /// The name on the last place of the page before.
    pub(super) fn after_name(&self) -> Option<&str> {
        self.after.as_ref().map(|place| place.name.as_str())
    }

    /// How many to look for: one more than are shown, to know whether there is a next page.
    pub(super) fn most(&self) -> usize {
        self.length + 1
    }

    /// The page, translated, and the token for the next one.
    pub(super) fn cut<T, U: From<T>>(&self, mut list: Vec<T>, place: impl Fn(&T) -> Place) -> (Vec<U>, String) {
        let mut token = String::new();
        if list.len() > self.length {
            list.truncate(self.length);
            token = list.last().map(|last| place(last).write(self.list, self.filter)).unwrap_or_default();
        }
        (list.into_iter().map(Into::into).collect(), token)
    }
}

/// As a token a place carries its list and that one's filter, and does not fit another one.
impl Place {
    pub(super) fn of(name: &str) -> Self {
        Self { name: name.into(), ..Self::default() }
    }

    fn write(&self, list: &str, filter: &str) -> String {
        let Self { name, first, second } = self;
        // No name has a control character in it.
        BASE64URL_NOPAD.encode(format!("{list}\n{filter}\n{name}\n{first}\n{second}").as_bytes())
    }

    fn read(list: &str, filter: &str, text: &str) -> Option<Self> {
        let text = String::from_utf8(BASE64URL_NOPAD.decode(text.as_bytes()).ok()?).ok()?;
        let text = text.strip_prefix(list)?.strip_prefix('\n')?.strip_prefix(filter)?.strip_prefix('\n')?;
        let [name, first, second] = text.split('\n').collect::<Vec<_>>()[..] else { return None };
        // One more is asked for, so the last number has no next.
        let number = |text: &str| text.parse().ok().filter(|&number: &u64| number < u64::MAX);
        Some(Self { name: name.into(), first: number(first)?, second: number(second)? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_comes_back_from_its_token_and_fits_no_other_list() {
        let place = Place { name: "tenant/a".into(), first: 7, second: 9 };
        let token = place.write("leases", "db");
        assert_eq!(Place::read("leases", "db", &token), Some(place));
        assert_eq!(Place::read("leases", "", &token), None);
        assert_eq!(Place::read("waiters", "db", &token), None);
        assert_eq!(Place::read("leases", "db", "AAAA"), None);
        let last = Place { first: u64::MAX, ..Place::default() };
        assert_eq!(Place::read("leases", "", &last.write("leases", "")), None);
    }
}
