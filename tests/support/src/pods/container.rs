//! One run of a container: a process in its own mount and network namespaces, with its own root
//! folder.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Context as _;
use k8s_openapi::api::core::v1::{ConfigMap, Container, Pod, Secret};
use kube::{Api, ResourceExt as _};

use super::volumes::{Source, field_value};
use super::{NODE_IP, Shared, program_name};

/// The pod annotation that names the folder of the cgroup in which the container runs.
const CGROUP: &str = "stand-in-kubelet/cgroup";

/// The parameters of a container.
pub(super) struct ContainerParams<'a> {
    pub(super) pod: &'a Pod,
    pub(super) container: &'a Container,
    pub(super) program: &'a Path,
    pub(super) ip: Ipv4Addr,
    pub(super) volumes: &'a BTreeMap<String, Source>,
    pub(super) dir: &'a Path,
}

/// Returns the command that starts the container, for the guardian.
pub(super) async fn command(shared: &Shared, params: &ContainerParams<'_>) -> anyhow::Result<Command> {
    let root = params.dir.join("root");
    std::fs::create_dir_all(&root).context("could not create the root folder")?;
    let script = params.dir.join("start.sh");
    let env = environment(shared, params).await?;
    std::fs::write(&script, start_script(shared, params, &root, &env)?)
        .context("could not write start.sh")?;
    let mut command = Command::new("unshare");
    command.args(["--mount", "--net", "sh"]).arg(&script);
    Ok(command)
}

/// Returns the container's environment as kubelet sets it, without the service links of other
/// Services than `kubernetes`.
async fn environment(
    shared: &Shared,
    params: &ContainerParams<'_>,
) -> anyhow::Result<BTreeMap<String, String>> {
    let pod = params.pod;
    let namespace = pod.namespace().unwrap_or_default();
    let mut env = BTreeMap::from([
        ("PATH".to_owned(), "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin".to_owned()),
        ("HOSTNAME".to_owned(), pod.name_any()),
        ("HOME".to_owned(), "/".to_owned()),
        ("KUBERNETES_SERVICE_HOST".to_owned(), crate::control_plane::KUBERNETES_SERVICE_IP.to_string()),
        ("KUBERNETES_SERVICE_PORT".to_owned(), "443".to_owned()),
        ("KUBERNETES_SERVICE_PORT_HTTPS".to_owned(), "443".to_owned()),
    ]);
    for var in params.container.env.iter().flatten() {
        let from = var.value_from.as_ref();
        let value = if let Some(field) = from.and_then(|f| f.field_ref.as_ref()) {
            match field.field_path.as_str() {
                "status.podIP" => params.ip.to_string(),
                _ => field_value(pod, field)?,
            }
        } else if let Some(key) = from.and_then(|f| f.secret_key_ref.as_ref()) {
            let secrets = Api::<Secret>::namespaced(shared.client.clone(), &namespace);
            let data = secrets.get(&key.name).await?.data.unwrap_or_default();
            let value =
                data.get(&key.key).with_context(|| format!("Secret {} lacks {}", key.name, key.key))?;
            String::from_utf8_lossy(&value.0).into_owned()
        } else if let Some(key) = from.and_then(|f| f.config_map_key_ref.as_ref()) {
            let maps = Api::<ConfigMap>::namespaced(shared.client.clone(), &namespace);
            let data = maps.get(&key.name).await?.data.unwrap_or_default();
            data.get(&key.key).with_context(|| format!("ConfigMap {} lacks {}", key.name, key.key))?.clone()
        } else {
            var.value.clone().unwrap_or_default()
        };
        env.insert(var.name.clone(), value);
    }
    Ok(env)
}

/// Returns the shell script that sets up network and root folder and then executes the container's
/// program. All mounts are below a memory file system that is visible in this mount namespace only,
/// so that the removal of the world's folder never reaches a part of the host's file system.
fn start_script(
    shared: &Shared,
    params: &ContainerParams<'_>,
    root: &Path,
    env: &BTreeMap<String, String>,
) -> anyhow::Result<String> {
    let container = params.container;
    let mut script = format!(
        "set -eu\nR={root}\nHOSTS={hosts}\nPROGRAM={program}\nNAME={name}\n{network}{ROOT}",
        root = quote(root.to_str().context("the root folder's name is not UTF-8")?),
        hosts = quote(&shared.hosts.file().to_string_lossy()),
        program = quote(&params.program.to_string_lossy()),
        name = quote(program_name(container).context("the container has no command")?),
        network = network(params.ip),
    );
    // A container that is placed in a cgroup sees the hierarchies, as a real container does.
    if let Some(cgroup) = params.pod.annotations().get(CGROUP) {
        let _ = writeln!(script, "echo $$ >{}/cgroup.procs", quote(cgroup));
        script.push_str("mkdir -p \"$R\"/sys/fs/cgroup\nmount --rbind /sys/fs/cgroup \"$R\"/sys/fs/cgroup\n");
    }
    let read_only =
        container.security_context.as_ref().and_then(|c| c.read_only_root_filesystem).unwrap_or_default();
    let mut mounts = String::new();
    for mount in container.volume_mounts.iter().flatten() {
        let source =
            params.volumes.get(&mount.name).with_context(|| format!("volume {} is not there", mount.name))?;
        let target = quote(&mount.mount_path);
        let _ = writeln!(script, "mkdir -p \"$R\"{target}");
        match source {
            Source::Folder(folder) => {
                let _ = writeln!(mounts, "mount --bind {} \"$R\"{target}", quote(&folder.to_string_lossy()));
            }
            Source::Memory => {
                let _ = writeln!(mounts, "mount -t tmpfs -o mode=1777 tmpfs \"$R\"{target}");
            }
        }
        if mount.read_only == Some(true) {
            let _ = writeln!(mounts, "mount -o remount,bind,ro \"$R\"{target} || true");
        }
    }
    script.push_str(&mounts);
    if read_only {
        script.push_str("mount -o remount,ro \"$R\"\n");
    }
    script.push_str("exec chroot \"$R\" /usr/bin/env -i");
    for (key, value) in env {
        let _ = write!(script, " {}", quote(&format!("{key}={value}")));
    }
    // Containers drop all capabilities and cannot gain any.
    script.push_str(" setpriv --no-new-privs --bounding-set=-all --inh-caps=-all --");
    for word in container.command.iter().flatten().chain(container.args.iter().flatten()) {
        let _ = write!(script, " {}", quote(word));
    }
    script.push('\n');
    Ok(script)
}

/// Returns the commands that create a pair of virtual interfaces, one end in the pod and the other
/// in the world, with a host route to the pod.
fn network(ip: Ipv4Addr) -> String {
    let [_, _, high, low] = ip.octets();
    // The name must be different in each run: the interface of a previous run disappears only some
    // time after its exit.
    let pid = std::process::id();
    format!(
        "PEER=p{high:x}{low:02x}-$$\nip link set lo up\nip link add eth0 type veth peer name \"$PEER\" netns {pid}\n\
         ip addr add {ip}/32 dev eth0\nip link set eth0 up\n\
         nsenter --target {pid} --net sh -c \"ip link set $PEER up && ip route replace {ip}/32 dev $PEER src {NODE_IP}\"\n\
         ip route add default via {NODE_IP} dev eth0 onlink\n"
    )
}

const ROOT: &str = r#"
mount -t tmpfs -o mode=0755 tmpfs "$R"
ro() { mount --bind "$1" "$2"; mount -o remount,bind,ro "$2" 2>/dev/null || true; }
for d in usr bin sbin lib lib32 lib64 libx32; do
  if [ -L "/$d" ]; then cp -P "/$d" "$R/$d"
  elif [ -d "/$d" ]; then mkdir "$R/$d"; ro "/$d" "$R/$d"; fi
done
mkdir -p "$R/etc" "$R/proc" "$R/dev" "$R/tmp" "$R/var/run" "$R/run"
for f in passwd group nsswitch.conf ld.so.cache ld.so.conf; do
  if [ -f "/etc/$f" ]; then cp "/etc/$f" "$R/etc/$f"; fi
done
for d in ssl pki ca-certificates; do
  if [ -d "/etc/$d" ]; then mkdir "$R/etc/$d"; ro "/etc/$d" "$R/etc/$d"; fi
done
touch "$R/etc/hosts"; mount --bind "$HOSTS" "$R/etc/hosts"
for f in null zero full random urandom; do touch "$R/dev/$f"; mount --bind "/dev/$f" "$R/dev/$f"; done
mount --rbind /proc "$R/proc"
mount -t tmpfs -o mode=0755 tmpfs "$R/usr/local/bin"
touch "$R/usr/local/bin/$NAME"; ro "$PROGRAM" "$R/usr/local/bin/$NAME"
"#;

/// Quotes a word for `sh`.
fn quote(word: &str) -> String {
    format!("'{}'", word.replace('\'', r"'\''"))
}

/// The log of a pod's container.
pub(super) fn log_file(shared: &Shared, pod: &Pod) -> PathBuf {
    shared.control_plane.log_file(&format!("{}_{}", pod.namespace().unwrap_or_default(), pod.name_any()))
}

#[cfg(test)]
mod tests {
    use super::quote;

    #[test]
    fn quoted_words_pass_through_the_shell_unchanged() {
        for word in ["plain", "", "it's", "a b", "$(x) `y` \"z\" \\", "line\nbreak"] {
            let output = std::process::Command::new("sh")
                .arg("-c")
                .arg(format!("printf %s {}", quote(word)))
                .output()
                .unwrap();
            assert_eq!(String::from_utf8_lossy(&output.stdout), word);
        }
    }
}
