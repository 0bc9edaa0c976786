# Short names for the commands of this repository. `just` lists them. CI runs `.ci/run`.

# List the recipes.
default:
    @just --list --unsorted

# Check that everything compiles.
check:
    cargo check --workspace --all-targets --locked

# Format all Rust files.
fmt:
    cargo fmt --all

# Check the format.
fmt-check:
    cargo fmt --all --check

# Run clippy as CI does.
clippy:
    cargo clippy --workspace --all-targets --locked -- -D warnings

# Check layers, names, comments, pages and the subject of the last commit.
tidy:
    cargo xtask tidy

# Find unused dependencies (needs cargo-machete).
machete:
    cargo machete

# Check licences, banned crates and sources of dependencies (needs cargo-deny).
deny:
    cargo deny --locked check bans licenses sources

# Check dependencies for known vulnerabilities (needs cargo-deny and a network).
advisories:
    cargo deny --locked check advisories
    cargo deny --manifest-path tools/fuzz/Cargo.toml --locked check --config deny.toml advisories

# Run the tests that need no control plane.
fast:
    cargo xtask test --fast

# Run all tests, or those of a suite: `just test certificates`.
test *args:
    cargo xtask test {{args}}

# Keep a control plane ready for the tests of another terminal.
world *args:
    cargo xtask world {{args}}

# Build the documentation of all crates; warnings are errors, as in CI.
doc:
    RUSTDOCFLAGS="-D warnings" cargo doc --workspace --no-deps --locked

# Build the documentation site, and check its links.
site *args:
    cargo xtask site {{args}}

# Render deploy/ from the Helm chart.
manifests *args:
    cargo xtask manifests {{args}}

# Show a login on a real control plane.
demo *args:
    cargo xtask demo {{args}}

# Control a one-node cluster on this machine: `just node up`.
node *args:
    cargo xtask node {{args}}

# Build the container image.
image *args:
    cargo xtask image {{args}}

# Write the archives and packages of a release: `just dist --dev`.
dist *args:
    cargo xtask dist {{args}}

# Check the workflows of GitHub.
workflows:
    cargo xtask workflows

# Measure the impersonation proxy, or the gateway: `just bench gateway`.
bench *args:
    cargo xtask bench {{args}}

# Run a load for minutes and check that nothing grows.
soak *args:
    cargo xtask soak {{args}}

# Run the fuzz targets (needs a nightly compiler), or only replay the seeds: `just fuzz --replay`.
fuzz *args:
    cargo xtask fuzz {{args}}

# Find or build etcd, kube-apiserver, kube-controller-manager and kubectl.
control-plane *args:
    cargo xtask control-plane {{args}}

# Regenerate the CLI reference.
cli-reference:
    cargo run --quiet -p pinniped-cli -- generate-markdown-help > docs/reference/cli.md

# Run everything that CI runs for a change.
ci:
    .ci/run
