//! A client that is made to be killed: it does one thing until somebody ends its process.
//!
//! `wire-client ADDRESS BULKHEAD hold|wait|churn COUNT` says `ready` on stdout once it has COUNT leases (hold), has sent
//! COUNT requests that wait (wait), or has had its first grant of COUNT busy tasks (churn).

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "part of a test, which fails by panicking")]

use std::io::Write;
use std::net::SocketAddr;

use tidegate_tests::{Client, ask, seconds, v1};

#[tokio::main(flavor = "current_thread")]
async fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [address, bulkhead, what, count] = &arguments[..] else { panic!("see the top of this file") };
    let address: SocketAddr = address.parse().expect("an address");
    let count: usize = count.parse().expect("a number");
    let client = Client::connect(address).await;
    match &what[..] {
        "hold" => {
            for _ in 0..count {
                client.take(bulkhead).await;
            }
        }
        "wait" => {
            for _ in 0..count {
                client.start(v1::AcquireRequest { max_wait: seconds(600), ..ask(bulkhead) });
            }
        }
        "churn" => {
            for _ in 0..count {
                tokio::spawn(churn(client.clone(), bulkhead.clone()));
            }
            churn_once(&client, bulkhead).await;
        }
        other => panic!("what is {other:?}?"),
    }
    println!("ready");
    std::io::stdout().flush().expect("somebody listens");
    std::future::pending::<()>().await;
}

async fn churn(client: Client, bulkhead: String) {
    loop {
        churn_once(&client, &bulkhead).await;
    }
}

async fn churn_once(client: &Client, bulkhead: &str) {
    if let Ok(response) = client.acquire(ask(bulkhead)).await {
        let lease = response.lease.expect("a grant has a lease");
        tokio::task::yield_now().await;
        client.release(&lease.lease_id).await;
    }
}
