//! The `trustspan` binary: everything is in the library.

fn main() -> std::process::ExitCode {
    trustspan::cli::main()
}
