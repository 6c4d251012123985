//! The wire contract of Tidegate: generated messages, client stubs and server traits of `tidegate.v1`.
//!
//! Only the codec is written by hand; the contract itself, with the unit and bounds of every field, is in
//! `proto/tidegate/v1/`.

mod codec;

pub use codec::SmallCodec;

/// Package `tidegate.v1`.
#[allow(missing_docs, unreachable_pub, clippy::all, clippy::pedantic)]
pub mod v1 {
    tonic::include_proto!("tidegate.v1");

    /// The encoded `FileDescriptorSet` of the package, for server reflection.
    pub const FILE_DESCRIPTOR_SET: &[u8] = tonic::include_file_descriptor_set!("tidegate_v1");
}
