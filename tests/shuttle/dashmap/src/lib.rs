//! As much of `dashmap` as the server uses: one ordered map behind one of shuttle's locks. Every guard of it is a lock, as
//! every guard of the real one may be.
#![allow(clippy::unwrap_used, clippy::disallowed_types, reason = "a poisoned lock means that the test failed already")]

use std::borrow::Borrow;
use std::collections::BTreeMap;
use std::ops::{Deref, DerefMut};

use shuttle::sync::{Mutex, MutexGuard};

use mapref::entry::{Entry, VacantEntry};

/// A map for many threads.
#[derive(Debug, Default)]
pub struct DashMap<K: Ord, V>(Mutex<BTreeMap<K, V>>);

/// A value in the map, locked.
pub struct RefMut<'a, K, V> {
    map: MutexGuard<'a, BTreeMap<K, V>>,
    key: K,
}

impl<K: Ord, V> Deref for RefMut<'_, K, V> {
    type Target = V;

    fn deref(&self) -> &V {
        &self.map[&self.key]
    }
}

impl<K: Ord, V> DerefMut for RefMut<'_, K, V> {
    fn deref_mut(&mut self) -> &mut V {
        self.map.get_mut(&self.key).unwrap()
    }
}

/// An entry seen by an iterator.
pub struct RefMulti<K, V>(K, V);

impl<K, V> RefMulti<K, V> {
    /// Its key.
    pub fn key(&self) -> &K {
        &self.0
    }
}

impl<K, V> Deref for RefMulti<K, V> {
    type Target = V;

    fn deref(&self) -> &V {
        &self.1
    }
}

impl<K: Ord, V> DashMap<K, V> {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<K, V>> {
        self.0.lock().unwrap()
    }

    /// As much as it has: a map of the shim gives back by itself.
    pub fn capacity(&self) -> usize {
        self.len()
    }

    /// How many entries there are.
    pub fn len(&self) -> usize {
        self.lock().len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Does nothing.
    pub fn shrink_to_fit(&self) {}
}

impl<K: Ord + Clone, V> DashMap<K, V> {
    /// An empty one.
    pub fn new() -> Self {
        Self(Mutex::new(BTreeMap::new()))
    }

    /// The value of a key.
    pub fn get<Q: Ord + ?Sized>(&self, key: &Q) -> Option<RefMut<'_, K, V>>
    where
        K: Borrow<Q>,
    {
        let map = self.lock();
        let key = map.get_key_value(key)?.0.clone();
        Some(RefMut { map, key })
    }

    /// The same, to change it.
    pub fn get_mut<Q: Ord + ?Sized>(&self, key: &Q) -> Option<RefMut<'_, K, V>>
    where
        K: Borrow<Q>,
    {
        self.get(key)
    }

    /// The place of a key.
    pub fn entry(&self, key: K) -> Entry<'_, K, V> {
        let map = self.lock();
        if map.contains_key(&key) {
            Entry::Occupied(RefMut { map, key })
        } else {
            Entry::Vacant(VacantEntry { map, key })
        }
    }

    /// Adds or replaces.
    pub fn insert(&self, key: K, value: V) -> Option<V> {
        self.lock().insert(key, value)
    }

    /// Takes out.
    pub fn remove<Q: Ord + ?Sized>(&self, key: &Q) -> Option<(K, V)>
    where
        K: Borrow<Q>,
    {
        self.lock().remove_entry(key)
    }

    /// Takes out what the condition says.
    pub fn remove_if<Q: Ord + ?Sized>(&self, key: &Q, condition: impl FnOnce(&K, &V) -> bool) -> Option<(K, V)>
    where
        K: Borrow<Q>,
    {
        let mut map = self.lock();
        let goes = map.get_key_value(key).is_some_and(|(key, value)| condition(key, value));
        if goes { map.remove_entry(key) } else { None }
    }

    /// Keeps what the condition says.
    pub fn retain(&self, mut condition: impl FnMut(&K, &mut V) -> bool) {
        self.lock().retain(|key, value| condition(key, value));
    }

    /// All of it, as it is now.
    pub fn iter(&self) -> impl Iterator<Item = RefMulti<K, V>>
    where
        V: Clone,
    {
        let all: Vec<_> = self.lock().iter().map(|(key, value)| RefMulti(key.clone(), value.clone())).collect();
        all.into_iter()
    }
}

/// As in the original.
pub mod mapref {
    /// As in the original.
    pub mod entry {
        use std::collections::BTreeMap;

        use shuttle::sync::MutexGuard;

        use crate::RefMut;

        /// The place of a key.
        pub enum Entry<'a, K, V> {
            /// Something is there.
            Occupied(RefMut<'a, K, V>),
            /// Nothing is there.
            Vacant(VacantEntry<'a, K, V>),
        }

        /// A place where nothing is.
        pub struct VacantEntry<'a, K, V> {
            pub(crate) map: MutexGuard<'a, BTreeMap<K, V>>,
            pub(crate) key: K,
        }

        impl<'a, K: Ord + Clone, V> VacantEntry<'a, K, V> {
            /// Whose place it is.
            pub fn key(&self) -> &K {
                &self.key
            }

            /// Puts something there.
            pub fn insert(self, value: V) -> RefMut<'a, K, V> {
                let Self { mut map, key } = self;
                map.insert(key.clone(), value);
                RefMut { map, key }
            }
        }

        impl<'a, K: Ord + Clone, V: Default> Entry<'a, K, V> {
            /// What is there, or the default put there.
            pub fn or_default(self) -> RefMut<'a, K, V> {
                match self {
                    Self::Occupied(value) => value,
                    Self::Vacant(vacant) => vacant.insert(V::default()),
                }
            }
        }
    }
}
