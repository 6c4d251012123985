//! Generates the code of `tidegate.v1` without a `protoc` (protox compiles the files).

use prost::Message;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let files = ["tidegate/v1/admission.proto", "tidegate/v1/admin.proto", "tidegate/v1/refusal.proto"];
    for file in files {
        println!("cargo::rerun-if-changed={file}");
    }
    let set = protox::compile(files, ["."])?;
    // `compile_fds` writes no descriptor file of its own; server reflection needs one.
    let out = std::path::PathBuf::from(std::env::var("OUT_DIR")?);
    std::fs::write(out.join("tidegate_v1.bin"), set.encode_to_vec())?;
    tonic_prost_build::configure().codec_path("crate::SmallCodec").compile_fds(set)?;
    Ok(())
}
