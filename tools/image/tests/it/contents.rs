//! The content of an image, and programs that run with nothing else.

use std::io::Write as _;
use std::path::Path;
use std::process::Command;

use pinniped_image::{File, Image, Origin, Roots};

use crate::support::{build_in, compile, image_of, read};

/// A program that resolves a host name, as the product's programs do.
const RESOLVE: &str = r#"
#include <netdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <math.h>
int main(int argc, char **argv) {
    struct addrinfo *found = 0;
    int code = getaddrinfo(argv[1], 0, 0, &found);
    printf("%d %.0f\n", code, floor(atof("2.5")));
    return code != 0;
}
"#;

#[test]
fn an_image_has_the_system_files_that_programs_expect() {
    let folder = tempfile::tempdir().unwrap();
    let program = compile(folder.path(), "program", "int main(void) { return 0; }", &["-static"]);
    let bundle = folder.path().join("roots.pem");
    std::fs::write(&bundle, "-----BEGIN CERTIFICATE-----\nAA==\n-----END CERTIFICATE-----\n".repeat(2))
        .unwrap();
    let mut image = image_of(&program);
    image.roots = Roots::File(bundle.clone());
    let built = build_in(folder.path(), &image);
    assert_eq!(built.libraries, []);
    assert_eq!(built.roots, Some((bundle.clone(), 2)));

    let read = read(&built.path);
    let files = read.files();
    let names: Vec<_> = files.iter().map(|(name, (mode, _))| format!("{mode:04o} {name}")).collect();
    let wanted = [
        "0755 /bin/",
        "0755 /bin/program",
        "0755 /etc/",
        "0644 /etc/group",
        "0644 /etc/nsswitch.conf",
        "0644 /etc/passwd",
        "0755 /etc/ssl/",
        "0755 /etc/ssl/certs/",
        "0644 /etc/ssl/certs/ca-certificates.crt",
        "1777 /tmp/",
    ];
    assert_eq!(names, wanted);
    let text = |name: &str| String::from_utf8(files[name].1.to_vec()).unwrap();
    assert_eq!(text("/etc/ssl/certs/ca-certificates.crt"), std::fs::read_to_string(&bundle).unwrap());
    assert!(text("/etc/passwd").contains("nonroot:x:65532:65532:nonroot:/:/sbin/nologin\n"));
    assert!(text("/etc/group").contains("nonroot:x:65532:\n"));
    assert!(text("/etc/nsswitch.conf").contains("hosts: files dns\n"));
}

#[test]
fn an_image_may_go_without_certificate_authorities() {
    let folder = tempfile::tempdir().unwrap();
    let built =
        build_in(folder.path(), &Image { roots: Roots::Absent, ..Image::new("test.example/empty:v1") });
    assert_eq!(built.roots, None);
    let read = read(&built.path);
    assert!(!read.files().contains_key("/etc/ssl/"));
    assert_eq!(read.layers.len(), 2);
}

/// A library in a separate folder that needs another one in the same folder.
#[test]
fn indirect_libraries_are_included_and_all_are_in_the_loaders_folder() {
    let folder = tempfile::tempdir().unwrap();
    let libraries = folder.path().join("odd folder");
    std::fs::create_dir(&libraries).unwrap();
    let search = format!("-L{}", libraries.display());
    let run_path = format!("-Wl,-rpath,{}", libraries.display());
    compile(&libraries, "libinner.so", "int inner(void) { return 3; }", &["-shared", "-fPIC"]);
    let source = "int inner(void); int outer(void) { return inner(); }";
    compile(&libraries, "libouter.so", source, &["-shared", "-fPIC", &search, &run_path, "-linner"]);
    let source = "int outer(void); int main(void) { return outer() - 3; }";
    let program = compile(folder.path(), "program", source, &[&search, &run_path, "-louter"]);
    let built = build_in(folder.path(), &image_of(&program));

    let library = |name: &str| built.libraries.iter().find(|library| library.name == name).unwrap();
    let c_library = library("libc.so.6");
    let folder_inside = Path::new(&c_library.inside).parent().unwrap();
    for name in ["libinner.so", "libouter.so"] {
        assert_eq!(Path::new(&library(name).inside), folder_inside.join(name));
        let canonical = libraries.join(name).canonicalize().unwrap();
        assert_eq!(library(name).path.canonicalize().unwrap(), canonical);
        assert_eq!(library(name).origin, Origin::Path(canonical));
    }
    // Where packages exist, the C library belongs to one.
    if Command::new("dpkg").arg("--version").output().is_ok_and(|output| output.status.success()) {
        assert!(matches!(&c_library.origin, Origin::Package { name, .. } if name.starts_with("libc6")));
    }
    let files = read(&built.path);
    for library in &built.libraries {
        let (mode, bytes) = files.files()[&library.inside];
        assert_eq!((mode, bytes), (0o755, std::fs::read(&library.path).unwrap().as_slice()));
    }
    // Preloaded libraries of the machine and the vDSO are not libraries of the program.
    let names: Vec<_> = built.libraries.iter().map(|library| library.name.as_str()).collect();
    assert_eq!(names.len(), 4, "{names:?}");
    std::fs::remove_dir_all(&libraries).unwrap();
    assert_eq!(run_inside(&folder.path().join("root"), &files, &[]), Some((0, String::new())));
}

#[test]
fn a_program_runs_and_resolves_names_with_only_the_image() {
    let folder = tempfile::tempdir().unwrap();
    let program = compile(folder.path(), "program", RESOLVE, &["-lm"]);
    let built = build_in(folder.path(), &image_of(&program));
    let files = read(&built.path);
    let root = folder.path().join("root");
    let hosts = [("etc/hosts", "127.1.2.3 known.example\n")];
    let Some(found) = run_inside_with(&root, &files, &hosts, &["known.example"]) else { return };
    assert_eq!(found, (0, "0 2\n".to_owned()));
    // EAI_AGAIN or EAI_NONAME after a query to the name server of resolv.conf: a result, not a
    // crash because of a missing library.
    let nobody = [
        ("etc/hosts", ""),
        ("etc/resolv.conf", "nameserver 127.255.255.254\noptions timeout:1 attempts:1\n"),
    ];
    let (code, printed) = run_inside_with(&root, &files, &nobody, &["unknown.example"]).unwrap();
    assert_eq!(code, 1, "{printed}");
    assert!(printed == "-3 2\n" || printed == "-2 2\n", "{printed}");
}

#[test]
fn symbols_are_removed_and_the_program_still_works() {
    let folder = tempfile::tempdir().unwrap();
    let source = "#include <stdio.h>\n__attribute__((noinline)) void name_of_function(void) { puts(\"hello\"); }\n\
                  int main(void) { name_of_function(); return 0; }";
    let program = compile(folder.path(), "program", source, &["-g3"]);
    let built = build_in(folder.path(), &image_of(&program));
    let files = read(&built.path);
    let whole = std::fs::read(&program).unwrap();
    let stripped = files.files()["/bin/program"].1.to_vec();
    if Command::new("strip").arg("--version").output().is_err() {
        assert_eq!((built.unstripped, stripped), (vec![program], whole));
        return;
    }
    assert_eq!(built.unstripped, Vec::<std::path::PathBuf>::new());
    assert!(stripped.len() < whole.len());
    let here = folder.path().to_str().unwrap();
    let contains =
        |bytes: &[u8], text: &str| bytes.windows(text.len()).any(|window| window == text.as_bytes());
    for symbol in [here, "name_of_function"] {
        assert!(contains(&whole, symbol) && !contains(&stripped, symbol), "{symbol}");
    }
    if let Some(found) = run_inside(&folder.path().join("root"), &files, &[]) {
        assert_eq!(found, (0, "hello\n".to_owned()));
    }
}

#[test]
fn files_that_are_not_programs_stay_unchanged() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("Corefile");
    std::fs::write(&file, ".:53 {}\n").unwrap();
    let image = Image {
        roots: Roots::Absent,
        files: vec![File { host: file, inside: "/etc/coredns/Corefile".to_owned(), mode: 0o600 }],
        ..Image::new("test.example/file:v1")
    };
    let files = read(&build_in(folder.path(), &image).path);
    assert_eq!(files.files()["/etc/coredns/Corefile"], (0o600, &b".:53 {}\n"[..]));
}

/// Runs `/bin/program` of an image in a folder that contains only the image's files.
fn run_inside(root: &Path, files: &crate::support::Read, args: &[&str]) -> Option<(i32, String)> {
    run_inside_with(root, files, &[], args)
}

/// Does the same with additional files. Returns `None` where this machine does not allow a change
/// of the root folder.
fn run_inside_with(
    root: &Path,
    files: &crate::support::Read,
    more: &[(&str, &str)],
    args: &[&str],
) -> Option<(i32, String)> {
    for (name, (mode, bytes)) in files.files() {
        let path = root.join(name.trim_start_matches('/'));
        if name.ends_with('/') {
            std::fs::create_dir_all(&path).unwrap();
            continue;
        }
        std::fs::write(&path, bytes).unwrap();
        std::fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(mode)).unwrap();
    }
    for (name, text) in more {
        std::fs::write(root.join(name), text).unwrap();
    }
    let inside = |program: &str| {
        let mut command = Command::new("unshare");
        command.args(["--user", "--map-root-user", "chroot"]).arg(root).arg(program);
        command.env_clear().env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin");
        command
    };
    let output = match inside("/bin/program").args(args).output() {
        Ok(output) => output,
        Err(error) => {
            skip(&format!("the program unshare does not run: {error}"));
            return None;
        }
    };
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    if error.starts_with("unshare:") || error.contains("cannot change root directory") {
        skip(error.trim());
        return None;
    }
    assert_eq!(error, "");
    Some((output.status.code().unwrap(), String::from_utf8(output.stdout).unwrap()))
}

/// Records a skip, as `pinniped_test_support::tools::skip` does; this crate does not depend on it.
fn skip(why: &str) {
    let set = |name: &str| std::env::var_os(name);
    assert!(
        set("PINNIPED_REQUIRE_ALL").is_none_or(|value| value != "1"),
        "programs must run in a root folder of their own: {why}"
    );
    let what = "running the programs of an image";
    eprintln!("SKIPPED {what}: {why}");
    if let Some(file) = set("PINNIPED_SKIPS") {
        let file = std::fs::File::options().create(true).append(true).open(file);
        let _ignored = file.and_then(|mut file| writeln!(file, "{what}: {why}"));
    }
}
