//! Errors name the problem and its remedy.

use std::error::Error as _;

use pinniped_image::{Error, File, Image, Roots, build, product};

use crate::support::{compile, image_of};

fn refusal(image: &Image) -> Error {
    let folder = tempfile::tempdir().unwrap();
    let error = build(image, &folder.path().join("image.tar")).unwrap_err();
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0, "something was left after {error}");
    error
}

#[test]
fn without_certificate_authorities_the_error_names_the_package() {
    let mut image = Image::new("test.example/empty:v1");
    image.roots = Roots::File("/nowhere/roots.pem".into());
    let wanted = "/nowhere/roots.pem is missing: install the package ca-certificates, or name another bundle of \
                  certificate authorities";
    assert_eq!(refusal(&image).to_string(), wanted);
    image.roots = Roots::File("/etc/passwd".into());
    assert_eq!(refusal(&image).to_string(), "/etc/passwd has no PEM certificate");
}

#[test]
fn the_error_names_a_missing_program() {
    let folder = tempfile::tempdir().unwrap();
    let error = product(folder.path(), &folder.path().join("image.tar")).unwrap_err();
    let missing = folder.path().join("pinniped-server");
    assert_eq!(error.to_string(), format!("could not read {}", missing.display()));
    assert!(error.source().unwrap().to_string().contains("No such file"));
}

#[test]
fn the_error_names_a_missing_library() {
    let folder = tempfile::tempdir().unwrap();
    let search = format!("-L{}", folder.path().display());
    compile(folder.path(), "libgone.so", "int gone(void) { return 0; }", &["-shared", "-fPIC"]);
    let source = "int gone(void); int main(void) { return gone(); }";
    let program = compile(folder.path(), "program", source, &[&search, "-lgone"]);
    let wanted =
        format!("{} needs the shared library libgone.so, which is not on this machine", program.display());
    assert_eq!(refusal(&image_of(&program)).to_string(), wanted);
}

#[test]
fn the_error_names_the_missing_loader_of_a_program() {
    let folder = tempfile::tempdir().unwrap();
    let flags = ["-Wl,--dynamic-linker=/nowhere/ld.so"];
    let program = compile(folder.path(), "program", "int main(void) { return 0; }", &flags);
    let error = refusal(&image_of(&program)).to_string();
    let wanted = format!("/nowhere/ld.so could not list the shared libraries of {}: ", program.display());
    assert!(error.starts_with(&wanted) && error.contains("or link it statically"), "{error}");
}

#[test]
fn invalid_programs_and_those_for_other_processors_are_rejected() {
    let folder = tempfile::tempdir().unwrap();
    let program = compile(folder.path(), "program", "int main(void) { return 0; }", &["-static"]);
    let mut bytes = std::fs::read(&program).unwrap();
    let cut = folder.path().join("cut");
    std::fs::write(&cut, &bytes[..100]).unwrap();
    assert!(matches!(refusal(&image_of(&cut)), Error::Elf { path, .. } if path == cut));

    // e_machine is at byte 18: EM_RISCV and EM_SPARC.
    let foreign = folder.path().join("foreign");
    bytes[18..20].copy_from_slice(&243_u16.to_le_bytes());
    std::fs::write(&foreign, &bytes).unwrap();
    let mut image = image_of(&program);
    image.files.push(File::program(&foreign, "/bin/foreign"));
    let wanted = format!("{} is a program for riscv64, but the image is for ", foreign.display());
    let error = refusal(&image).to_string();
    assert!(error.starts_with(&wanted), "{error}");

    bytes[18..20].copy_from_slice(&2_u16.to_le_bytes());
    std::fs::write(&foreign, &bytes).unwrap();
    assert!(matches!(refusal(&image_of(&foreign)), Error::Processor { machine: 2, .. }));
}

#[test]
fn invalid_names_and_paths_are_rejected() {
    let mut image = Image { roots: Roots::Absent, ..Image::new("no-registry-and-no-tag") };
    let wanted = "the image reference \"no-registry-and-no-tag\" must be of the form registry/name:tag";
    assert_eq!(refusal(&image).to_string(), wanted);
    image.reference = "test.example/name:v1".to_owned();
    image.files = vec![File { host: "/etc/passwd".into(), inside: "/../outside".to_owned(), mode: 0o644 }];
    assert!(matches!(refusal(&image), Error::Path { path } if path == "/../outside"));
}

#[test]
fn the_error_names_an_archive_that_cannot_be_written() {
    let out = std::path::Path::new("/nowhere/image.tar");
    let image = Image { roots: Roots::Absent, ..Image::new("test.example/name:v1") };
    assert_eq!(build(&image, out).unwrap_err().to_string(), "could not write /nowhere/image.tar");
}
