//! The server as a process of its own.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{BufRead, BufReader, Read, Seek, Write};
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, ChildStderr, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use parking_lot::Mutex;
use tempfile::NamedTempFile;
use tokio::sync::OnceCell;

use crate::calls::{Admin, Client};
use crate::{Instant, binary, v1};

/// How long a test waits for what must come soon, before it fails. No promise: those are asserted where they are meant.
pub const PATIENCE: Duration = Duration::from_secs(40);
/// How often a state that is waited for is looked at.
const LOOK: Duration = Duration::from_millis(1);
/// How many of the last lines of the log are kept.
const KEPT_LINES: usize = 1000;

/// A running `tidegate-server`, killed when it is dropped. If a test panics, the end of the server's log is shown.
#[derive(Debug)]
pub struct Server {
    child: Child,
    addresses: Addresses,
    log: Log,
    operator: OnceCell<Admin>,
    _config: Option<NamedTempFile>,
}

/// How a server ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Exit {
    /// Its exit code; `None` if a signal ended it.
    pub code: Option<i32>,
    /// From the request to stop, or from the start, to the end.
    pub took: Duration,
    /// The end of what it logged.
    pub log: String,
}

#[derive(Clone, Copy, Debug)]
struct Addresses {
    admission: SocketAddr,
    admin: SocketAddr,
    ops: SocketAddr,
}

type Log = Arc<Mutex<VecDeque<String>>>;

impl Server {
    /// Starts a server with that configuration, on free ports where it names none, and returns when it serves.
    pub fn start(config: &str) -> Self {
        let (child, file) = spawn(command(&["serve", "--config"]), config);
        Self::serving(child, Some(file))
    }

    /// The same with so many files that it may have open: at first, and if it asks for more.
    pub fn start_with_files(config: &str, soft: u32, hard: u32) -> Self {
        let mut command = Command::new("sh");
        command
            .args(["-c", &format!("ulimit -Sn {soft}; ulimit -Hn {hard}; exec \"$0\" serve --config \"$@\"")])
            .arg(binary::path());
        command.env_remove("RUST_LOG").env_remove("TIDEGATE_SERVER").env_remove("TIDEGATE_SEED");
        command.stdin(Stdio::null()).stdout(Stdio::null());
        let (child, file) = spawn(command, config);
        Self::serving(child, Some(file))
    }

    /// Starts a server on a file that the test may change later, on free ports whatever the file says, with those
    /// variables in its environment, and returns when it serves.
    pub fn start_on(file: &Path, variables: &[(&str, &str)]) -> Self {
        let mut command = command(&["serve", "--config"]);
        command.arg(file).envs(variables.iter().copied());
        for listener in ["--listen", "--admin-listen", "--ops-listen"] {
            command.args([listener, "127.0.0.1:0"]);
        }
        Self::serving(command.stderr(Stdio::piped()).spawn().expect("the server's binary starts"), None)
    }

    fn serving(mut child: Child, file: Option<NamedTempFile>) -> Self {
        let mut lines = BufReader::new(child.stderr.take().expect("stderr is piped"));
        let (log, mut line) = (Log::default(), String::new());
        let addresses = loop {
            line.clear();
            if lines.read_line(&mut line).expect("the log is UTF-8") == 0 {
                let _ = child.wait();
                panic!("the server did not start:\n{}", text(&log));
            }
            keep(&log, &line);
            if let Some(addresses) = addresses(&line) {
                break addresses;
            }
        };
        drain(lines, log.clone());
        Self { child, addresses, log, operator: OnceCell::new(), _config: file }
    }

    /// The id of its process.
    pub fn process(&self) -> u32 {
        self.child.id()
    }

    /// Where applications connect.
    pub fn admission_address(&self) -> SocketAddr {
        self.addresses.admission
    }

    /// Where operators connect.
    pub fn admin_address(&self) -> SocketAddr {
        self.addresses.admin
    }

    /// Where probes connect.
    pub fn ops_address(&self) -> SocketAddr {
        self.addresses.ops
    }

    /// A client on a new connection.
    pub async fn client(&self) -> Client {
        Client::connect(self.addresses.admission).await
    }

    /// That many clients, each on a connection of its own.
    pub async fn clients(&self, count: usize) -> Vec<Client> {
        let mut clients = Vec::new();
        for _ in 0..count {
            clients.push(self.client().await);
        }
        clients
    }

    /// The operators' side, on a connection that all its users share.
    pub async fn admin(&self) -> &Admin {
        self.operator.get_or_init(|| Admin::connect(self.addresses.admin)).await
    }

    /// How a bulkhead stands.
    pub async fn status(&self, bulkhead: &str) -> v1::BulkheadStatus {
        self.admin().await.bulkhead(bulkhead).await.status.expect("a bulkhead has a status")
    }

    /// Looks at a bulkhead until something holds for it, and answers how it stands then.
    pub async fn until(&self, bulkhead: &str, holds: impl Fn(&v1::BulkheadStatus) -> bool) -> v1::BulkheadStatus {
        self.until_within(PATIENCE, bulkhead, holds).await
    }

    /// The same with a bound that is promised.
    pub async fn until_within(
        &self,
        bound: Duration,
        bulkhead: &str,
        holds: impl Fn(&v1::BulkheadStatus) -> bool,
    ) -> v1::BulkheadStatus {
        let start = Instant::now();
        loop {
            let status = self.status(bulkhead).await;
            if holds(&status) {
                return status;
            }
            assert!(start.elapsed() <= bound, "{bulkhead:?} still stands like this after {bound:?}: {status:?}");
            tokio::time::sleep(LOOK).await;
        }
    }

    /// Stops the process where it stands, and returns when it does; its sockets stay open.
    pub fn stop(&self) {
        self.signal(Signal::SIGSTOP);
        // On a busy machine a thread goes on until it is scheduled.
        while !self.is_stopped() {
            std::thread::sleep(LOOK);
        }
    }

    /// Lets a stopped process go on.
    pub fn cont(&self) {
        self.signal(Signal::SIGCONT);
    }

    /// Asks the server to read its configuration again.
    pub fn hang_up(&self) {
        self.signal(Signal::SIGHUP);
    }

    /// Waits until that many lines with that text are in the end of the log.
    pub async fn until_logged(&self, part: &str, times: usize) {
        let start = Instant::now();
        while self.log.lock().iter().filter(|line| line.contains(part)).count() < times {
            assert!(start.elapsed() <= PATIENCE, "the log does not say {part:?} {times} times");
            tokio::time::sleep(LOOK).await;
        }
    }

    /// Asks the server to end.
    pub fn ask_to_end(&self) {
        self.signal(Signal::SIGTERM);
    }

    /// Asks the server to end, and waits until it has.
    pub async fn terminate(self) -> Exit {
        self.ask_to_end();
        self.ended().await
    }

    /// Waits until the server has ended.
    pub async fn ended(mut self) -> Exit {
        let start = Instant::now();
        let status = end_of(&mut self.child).await;
        let took = start.elapsed();
        // The other end of the pipe is closed; what was in it is still being read.
        while Arc::strong_count(&self.log) > 1 {
            tokio::time::sleep(LOOK).await;
        }
        Exit { code: status.code(), took, log: text(&self.log) }
    }

    /// Asks a server to end that long after its process was made, wherever it is by then.
    pub async fn stopped_after(config: &str, delay: Duration) -> Exit {
        let start = Instant::now();
        let (mut child, _file) = spawn(command(&["serve", "--config"]), config);
        let log = Log::default();
        drain(BufReader::new(child.stderr.take().expect("stderr is piped")), log.clone());
        tokio::time::sleep(delay).await;
        kill(Pid::from_raw(i32::try_from(child.id()).expect("process ids are small")), Signal::SIGTERM)
            .expect("the server is our child");
        let status = end_of(&mut child).await;
        Exit { code: status.code(), took: start.elapsed(), log: text(&log) }
    }

    /// The processor time it has used so far, in user space and in the kernel.
    pub fn cpu_time(&self) -> Duration {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.child.id())).expect("the server runs");
        // The second field is the program's name in parentheses, and may contain anything.
        let (_, rest) = stat.rsplit_once(')').expect("stat has a name");
        let ticks: u64 = rest.split_whitespace().skip(11).take(2).map(|ticks| ticks.parse::<u64>().unwrap()).sum();
        // Linux shows them in hundredths of a second, whatever the kernel's own clock is.
        Duration::from_millis(ticks * 10)
    }

    /// The memory that it has resident, in bytes.
    pub fn resident(&self) -> u64 {
        self.memory("VmRSS:")
    }

    /// The most that it ever had.
    pub fn most_resident(&self) -> u64 {
        self.memory("VmHWM:")
    }

    fn memory(&self, key: &str) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id())).expect("the server runs");
        let line = status.lines().find_map(|line| line.strip_prefix(key)).expect("a process has memory");
        line.trim().trim_end_matches(" kB").parse::<u64>().expect("a number") * 1024
    }

    /// How many files and sockets it has open.
    pub fn open_files(&self) -> usize {
        std::fs::read_dir(format!("/proc/{}/fd", self.child.id())).expect("the server runs").count()
    }

    /// Waits until it has no more files open than that: connections that were closed are gone from its counts.
    pub async fn until_open_files(&self, most: usize) {
        let start = Instant::now();
        while self.open_files() > most {
            assert!(start.elapsed() <= PATIENCE, "{} files are open, not {most}", self.open_files());
            tokio::time::sleep(LOOK).await;
        }
    }

    /// From now on it may have so many files open, also fewer than it has.
    pub fn allow_files(&self, files: u32) {
        let id = self.child.id().to_string();
        let set = Command::new("prlimit").args(["--pid", &id, &format!("--nofile={files}:")]).status();
        assert!(set.expect("util-linux is there").success());
    }

    /// How long the server itself stood still so far, as its log tells: what is late by that is not its fault (R6).
    pub fn stalled(&self) -> Duration {
        let log = self.log.lock();
        log.iter().rev().find_map(|line| total(line)).unwrap_or_default()
    }

    /// The end of its log.
    pub fn log(&self) -> String {
        text(&self.log)
    }

    /// Whether a line with that text is in the end of the log.
    pub fn logged(&self, part: &str) -> bool {
        self.log.lock().iter().any(|line| line.contains(part))
    }

    fn is_stopped(&self) -> bool {
        let threads = std::fs::read_dir(format!("/proc/{}/task", self.child.id())).expect("the server runs");
        threads.flatten().all(|thread| {
            let stat = std::fs::read_to_string(thread.path().join("stat")).unwrap_or_default();
            stat.rsplit_once(')').is_none_or(|(_, rest)| rest.trim_start().starts_with('T'))
        })
    }

    fn signal(&self, signal: Signal) {
        let id = i32::try_from(self.child.id()).expect("process ids are small");
        kill(Pid::from_raw(id), signal).expect("the server is our child");
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            eprintln!("the server's log ended with:\n{}", text(&self.log));
        }
    }
}

/// Starts a server that is expected to end by itself, with exactly the ports that the configuration names where it names
/// them.
pub async fn exit_of(config: &str) -> Exit {
    let start = Instant::now();
    let (mut child, _file) = spawn(command(&["serve", "--config"]), config);
    let log = Log::default();
    drain(BufReader::new(child.stderr.take().expect("stderr is piped")), log.clone());
    let status = end_of(&mut child).await;
    let took = start.elapsed();
    // The other end of the pipe is closed; what was in it is still being read.
    while Arc::strong_count(&log) > 1 {
        tokio::time::sleep(LOOK).await;
    }
    let log = text(&log);
    Exit { code: status.code(), took, log }
}

/// What a command that ends by itself said.
#[derive(Clone, Debug)]
pub struct Said {
    /// Its exit code; `None` if a signal ended it.
    pub code: Option<i32>,
    /// On its standard output.
    pub out: String,
    /// On its standard error.
    pub err: String,
}

/// Runs `tidegate-server` with those arguments and variables. It must end by itself.
pub async fn run(arguments: &[&str], variables: &[(&str, &str)]) -> Said {
    let file = || tempfile::tempfile().expect("a temporary file can be made");
    let (mut out, mut err) = (file(), file());
    let stdio = |file: &File| Stdio::from(file.try_clone().expect("a file can be shared"));
    let mut command = command(arguments);
    let child = command.envs(variables.iter().copied()).stdout(stdio(&out)).stderr(stdio(&err)).spawn();
    let status = end_of(&mut child.expect("the server's binary starts")).await;
    let text = |file: &mut File| {
        let mut text = String::new();
        file.rewind().and_then(|()| file.read_to_string(&mut text)).expect("what it said is UTF-8");
        text
    };
    Said { code: status.code(), out: text(&mut out), err: text(&mut err) }
}

/// The server's binary, to be started quietly.
fn command(arguments: &[&str]) -> Command {
    let mut command = Command::new(binary::path());
    command
        .args(arguments)
        .env_remove("RUST_LOG")
        .env_remove("TIDEGATE_SERVER")
        .env_remove("TIDEGATE_SEED")
        .stdin(Stdio::null())
        .stdout(Stdio::null());
    command
}

fn spawn(mut command: Command, config: &str) -> (Child, NamedTempFile) {
    let mut file = tempfile::Builder::new().suffix(".toml").tempfile().expect("a temporary file can be made");
    file.write_all(with_free_ports(config).as_bytes()).expect("a temporary file can be written");
    let child = command.arg(file.path()).stderr(Stdio::piped()).spawn().expect("the server's binary starts");
    (child, file)
}

/// The configuration with port 0 for each listener that it does not name.
fn with_free_ports(config: &str) -> String {
    let named = |key: &str| config.lines().any(|line| line.split('=').next().is_some_and(|left| left.trim() == key));
    let mut ports = String::new();
    for key in ["listen", "admin_listen", "ops_listen"].into_iter().filter(|key| !named(key)) {
        ports.extend([key, " = '127.0.0.1:0'\n"]);
    }
    match config.split_once("[server]\n") {
        Some((before, after)) => format!("{before}[server]\n{ports}{after}"),
        None => format!("[server]\n{ports}{config}"),
    }
}

/// What the line tells, if it is the one that says where the server listens.
fn addresses(line: &str) -> Option<Addresses> {
    let (_, line) = line.split_once(" serving ")?;
    let address = |key| line.split_whitespace().find_map(|word| word.strip_prefix(key)?.parse().ok());
    Some(Addresses { admission: address("admission=")?, admin: address("admin=")?, ops: address("ops=")? })
}

/// What the line tells of all stalls so far, written as Rust shows a duration: `total=1.5s`.
fn total(line: &str) -> Option<Duration> {
    let (_, line) = line.split_once("stood still")?;
    let text = line.split_whitespace().find_map(|word| word.strip_prefix("total="))?;
    let unit = text.find(|char: char| char != '.' && !char.is_ascii_digit())?;
    let number: f64 = text[..unit].parse().ok()?;
    let seconds = match &text[unit..] {
        "s" => number,
        "ms" => number / 1e3,
        _ => return None,
    };
    Some(Duration::from_secs_f64(seconds))
}

/// Reads the log for as long as it is written, so that the server never waits for its reader.
fn drain(mut lines: BufReader<ChildStderr>, log: Log) {
    std::thread::spawn(move || {
        let mut line = String::new();
        while lines.read_line(&mut line).is_ok_and(|read| read > 0) {
            keep(&log, &line);
            line.clear();
        }
    });
}

fn keep(log: &Log, line: &str) {
    let mut log = log.lock();
    if log.len() == KEPT_LINES {
        log.pop_front();
    }
    log.push_back(line.to_owned());
}

fn text(log: &Log) -> String {
    log.lock().iter().map(String::as_str).collect()
}

async fn end_of(child: &mut Child) -> ExitStatus {
    let start = Instant::now();
    loop {
        if let Some(status) = child.try_wait().expect("the server is our child") {
            return status;
        }
        if start.elapsed() > PATIENCE {
            let _ = child.kill();
            panic!("the server still runs after {PATIENCE:?}");
        }
        tokio::time::sleep(LOOK).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_listeners_without_an_address_get_a_free_port() {
        let config = with_free_ports("[[bulkhead]]\nname='db'\n[server]\nadmin_listen='127.0.0.1:7'\n");
        assert_eq!(config.matches("listen").count(), 3);
        assert!(config.contains("[server]\nlisten = '127.0.0.1:0'\nops_listen = '127.0.0.1:0'\nadmin_listen="));
        assert!(with_free_ports("[defaults]\n").starts_with("[server]\nlisten"));
    }

    #[test]
    fn a_stall_is_read_from_the_line_that_tells_it() {
        let line = |total: &str| format!("WARN tidegate_server::clock: the server stood still; gap=1s total={total}\n");
        assert_eq!(total(&line("4.000123s")), Some(Duration::from_micros(4_000_123)));
        assert_eq!(total(&line("123.5ms")), Some(Duration::from_micros(123_500)));
        assert_eq!(total("INFO tidegate_server: stopping"), None);
    }

    #[test]
    fn the_line_with_the_addresses_is_understood() {
        let line =
            "2026-01-01T00:00:00Z  INFO tidegate_server: serving admission=127.0.0.1:1 admin=127.0.0.1:2 ops=[::1]:3";
        let Addresses { admission, admin, ops } = addresses(line).unwrap();
        assert_eq!((admission.port(), admin.port(), ops.port()), (1, 2, 3));
        assert!(addresses("INFO tidegate_server: stopping").is_none());
    }
}
