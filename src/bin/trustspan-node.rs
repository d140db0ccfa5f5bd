//! The `trustspan-node` binary. All code is in the library.

fn main() -> std::process::ExitCode {
    trustspan::node::main()
}
