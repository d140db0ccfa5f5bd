//! The `trustspan` binary. All code is in the library.

use mimalloc::MiMalloc;
use zeroizing_alloc::ZeroAlloc;

/// What is freed is overwritten: private keys pass through the buffers of many libraries.
#[global_allocator]
static ALLOCATOR: ZeroAlloc<MiMalloc> = ZeroAlloc(MiMalloc);

fn main() -> std::process::ExitCode {
    trustspan::cli::main()
}
