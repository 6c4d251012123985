//! The bare tonic server that the server is compared with.

use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};

/// `server/examples/echo.rs` as a process of its own, killed when it is dropped.
pub(crate) struct Echo {
    child: Child,
    pub(crate) address: SocketAddr,
}

impl Echo {
    /// Starts it; `make figures` has built it beside this program.
    pub(crate) fn start() -> Self {
        let path = std::env::current_exe().unwrap().with_file_name("examples").join("echo");
        let mut child =
            Command::new(&path).stdin(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap_or_else(|error| {
                panic!("{}: {error}; cargo build --examples -p tidegate-server", path.display())
            });
        let mut line = String::new();
        BufReader::new(child.stderr.take().unwrap()).read_line(&mut line).unwrap();
        let address = line.trim().strip_prefix("serving admission=").expect("it says where it listens");
        Self { child, address: address.parse().unwrap() }
    }
}

impl Drop for Echo {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
