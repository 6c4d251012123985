//! The Rust client's examples do what they say.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

use std::net::SocketAddr;
use std::process::Stdio;

use tidegate_tests::{PATIENCE, Server, drain_and_refill, example};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;
use tokio::process::Command;
use tokio::time::timeout;

/// What that request is answered, whole.
async fn get(address: SocketAddr) -> String {
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(b"GET /charge HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").await.unwrap();
    let mut answer = String::new();
    timeout(PATIENCE, stream.read_to_string(&mut answer)).await.expect("it is answered").unwrap();
    answer
}

#[tokio::test]
async fn axum_works_for_as_many_as_the_servers_bulkhead_lets_it_and_refuses_with_429() {
    let server = Server::start("[[bulkhead]]\nname='payments-api'\nlimit=2\n");
    let mut example = Command::new(example("axum"))
        .env("TIDEGATE_ENDPOINT", format!("http://{}", server.admission_address()))
        .env("LISTEN", "127.0.0.1:0")
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    let mut said = BufReader::new(example.stdout.take().unwrap()).lines();
    let line = timeout(PATIENCE, said.next_line()).await.expect("it starts").unwrap().unwrap();
    let address = line.strip_prefix("serving http://").and_then(|rest| rest.strip_suffix("/charge")).unwrap();
    let address = address.parse().unwrap();
    // Others hold both permits.
    let client = server.client().await;
    let held = [client.take("payments-api").await, client.take("payments-api").await];
    let refused = get(address).await;
    assert!(refused.starts_with("HTTP/1.1 429 "), "{refused}");
    assert!(refused.to_lowercase().contains("\r\nretry-after: "), "{refused}");
    for lease in held {
        client.release(&lease.lease_id).await;
    }
    let charged = get(address).await;
    assert!(charged.starts_with("HTTP/1.1 200 ") && charged.ends_with("charged\n"), "{charged}");
    server.until("payments-api", |now| now.running == 0).await;
    drain_and_refill(&server, "payments-api").await;
}

#[tokio::test]
async fn tonic_is_answered_and_then_refused_as_a_tidegate_refuses() {
    let ran = timeout(PATIENCE, Command::new(example("tonic")).output()).await.expect("it ends by itself").unwrap();
    let said = String::from_utf8(ran.stdout).unwrap();
    assert!(ran.status.success(), "{said}");
    assert!(said.contains("answered: Serving\nrefused: ResourceExhausted CONCURRENCY_CAPACITY_EXHAUSTED,"), "{said}");
}
