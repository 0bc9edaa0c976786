//! Linker flags for release programs that use little memory. The servers and the command line share
//! this build script.
//!
//! Most of the resident memory of an idle Concierge is its own program file, so relocations,
//! duplicate functions and the order of functions count. They also count for a short command: a
//! login with a cached credential uses 5.7 MiB with the group of its functions, 8.8 without.
//! Programs of other profiles are linked with the defaults.

use std::path::PathBuf;
use std::process::Command;

fn main() {
    let var = |name| std::env::var(name).unwrap_or_default();
    let manifest = PathBuf::from(var("CARGO_MANIFEST_DIR"));
    let Some(folder) = manifest.ancestors().map(|dir| dir.join("build")).find(|dir| dir.is_dir()) else {
        return;
    };
    println!("cargo::rerun-if-changed={}", folder.display());
    let target = var("TARGET");
    if var("PROFILE") != "release" || !target.contains("-linux-") {
        return;
    }
    let is_lld = links_with_lld(&target);
    let is_static = var("CARGO_CFG_TARGET_FEATURE").split(',').any(|feature| feature == "crt-static");
    let first = match var("CARGO_PKG_NAME").as_str() {
        "pinniped-cli" => Some("login-functions.ld"),
        // GNU ld would compare each of its hundreds of patterns with each function.
        _ => is_lld.then_some("server-functions.ld"),
    };
    // Of several scripts, the first that selects a function applies.
    for script in first.into_iter().chain(["function-groups.ld"]) {
        println!("cargo::rustc-link-arg-bins=-Wl,-T,{}", folder.join(script).display());
    }
    if !target.ends_with("-gnu") {
        return;
    }
    // Packs a megabyte of relocations into a few kilobytes. Not for other targets: their C library
    // may be too old to read them.
    if target == var("HOST") && glibc().is_some_and(|version| version >= (2, 36)) {
        println!("cargo::rustc-link-arg-bins=-Wl,-z,pack-relative-relocs");
    }
    // The text with the version of the C library, for bills of materials: `cargo xtask image`.
    if is_static {
        println!("cargo::rustc-link-arg-bins=-Wl,--undefined=gnu_get_libc_version");
    }
    // Merges functions with the same code. Only lld supports the flag; GNU ld refuses it.
    if is_lld {
        println!("cargo::rustc-link-arg-bins=-Wl,--icf=all");
        // The unwinder becomes a part of the program, so that a start need not load the library
        // libgcc_s. Static programs have it already. rustc names this library earlier, and only
        // definitions of a whole archive take precedence over those of an earlier library.
        if target == var("HOST") && !is_static && is_static_unwinder_installed() {
            println!("cargo::rustc-link-arg-bins=-Wl,--whole-archive,-l:libgcc_eh.a,--no-whole-archive");
        }
    }
}

/// Version of the C library of this machine, the first that reads packed relocations being 2.36.
fn glibc() -> Option<(u32, u32)> {
    let output = Command::new("getconf").arg("GNU_LIBC_VERSION").output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    let (major, rest) = text.trim().strip_prefix("glibc ")?.split_once('.')?;
    let minor = rest.split('.').next()?;
    Some((major.parse().ok()?, minor.parse().ok()?))
}

/// Returns whether GCC's static unwinder is installed. Some installations of other C compilers do
/// not have it.
fn is_static_unwinder_installed() -> bool {
    let output = Command::new("cc").arg("-print-file-name=libgcc_eh.a").output();
    // Without the file, the output is the name only.
    output.is_ok_and(|output| String::from_utf8(output.stdout).is_ok_and(|path| path.contains('/')))
}

/// The toolchain has its own lld, which it takes for this target unless it is told otherwise.
fn links_with_lld(target: &str) -> bool {
    let flags = std::env::var("CARGO_ENCODED_RUSTFLAGS").unwrap_or_default();
    let linker = std::env::var_os("RUSTC_LINKER").is_some() || flags.contains("link");
    let sysroot = || {
        let rustc = std::env::var_os("RUSTC")?;
        let output = Command::new(rustc).args(["--print", "sysroot"]).output().ok()?;
        Some(PathBuf::from(String::from_utf8(output.stdout).ok()?.trim()))
    };
    // rustc 1.90 and later, on this target only.
    target == "x86_64-unknown-linux-gnu"
        && !linker
        && sysroot()
            .is_some_and(|root| root.join("lib/rustlib").join(target).join("bin/gcc-ld/ld.lld").exists())
}
