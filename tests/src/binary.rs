//! The server's binary, built by the test that needs it.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;

/// The one that `TIDEGATE_SERVER` names. Without it the built `tidegate-server` of this work tree, as fresh as its sources:
/// built once for each test process, in the profile and the target folder of the test itself.
pub(crate) fn path() -> &'static Path {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| std::env::var_os("TIDEGATE_SERVER").map_or_else(build, PathBuf::from))
}

fn build() -> PathBuf {
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR")).join("Cargo.toml");
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| env!("CARGO").into()));
    cargo.args(["build", "--quiet", "--package", "tidegate-server", "--message-format", "json-render-diagnostics"]);
    cargo.arg("--manifest-path").arg(manifest).arg("--target-dir").arg(target_dir());
    if !cfg!(debug_assertions) {
        cargo.arg("--release");
    }
    let output = cargo.stderr(Stdio::inherit()).output().expect("cargo starts");
    let messages = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "cargo could not build tidegate-server");
    let executable = |line: &str| {
        let is_server = line.contains(r#""kind":["bin"]"#) && line.contains(r#""name":"tidegate-server""#);
        let (_, path) = line.split_once(r#""executable":""#).filter(|_| is_server)?;
        path.split_once('"').map(|(path, _)| PathBuf::from(path))
    };
    messages.lines().find_map(executable).expect("cargo tells where it put tidegate-server")
}

/// The target folder that this very test was built into: `<target>/<profile>/deps/<test>`.
fn target_dir() -> PathBuf {
    let test = std::env::current_exe().expect("a running test knows its path");
    test.ancestors().nth(3).expect("cargo builds tests three folders deep").to_path_buf()
}
