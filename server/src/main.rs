//! The daemon `tidegate-server`.
//!
//! Exit codes: 0 after a clean stop, 1 when serving failed, 2 for a wrong command line, 64 for a bad configuration.

use std::io::IsTerminal;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, Subcommand};
use tidegate_server::config::Config;
use tidegate_server::{Listeners, run};
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;
use tracing::error;
use tracing_subscriber::EnvFilter;

/// Decides who may start now.
#[derive(Parser)]
#[command(version)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Serve until SIGTERM or SIGINT: drains then, and ends at once at the second one.
    Serve {
        /// The configuration, a TOML file.
        #[arg(long)]
        config: PathBuf,
    },
    /// Print the version.
    Version,
}

fn main() -> ExitCode {
    match Arguments::parse().command {
        Command::Version => {
            println!("tidegate-server {}", env!("CARGO_PKG_VERSION"));
            ExitCode::SUCCESS
        }
        Command::Serve { config } => {
            let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("info"));
            tracing_subscriber::fmt()
                .with_env_filter(filter)
                .with_ansi(std::io::stderr().is_terminal())
                .with_writer(std::io::stderr)
                .init();
            match Config::read(&config) {
                Ok(config) => serve(config),
                Err(error) => {
                    error!("bad configuration in {}: {error}", config.display());
                    ExitCode::from(64)
                }
            }
        }
    }
}

#[tokio::main]
async fn serve(config: Config) -> ExitCode {
    let served = async {
        // The handlers are there before anything else, so no signal is missed.
        let (mut terminate, mut interrupt) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
        let listeners = Listeners::bind(&config.server).await?;
        let (stop, at_once) = (CancellationToken::new(), CancellationToken::new());
        let signals = [stop.clone(), at_once.clone()];
        tokio::spawn(async move {
            for asked in signals {
                tokio::select! {
                    _ = terminate.recv() => {}
                    _ = interrupt.recv() => {}
                }
                asked.cancel();
            }
        });
        run(config, listeners, stop.cancelled(), at_once.cancelled()).await
    };
    match served.await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            error!("{error:#}");
            ExitCode::FAILURE
        }
    }
}
