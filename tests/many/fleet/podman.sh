# On a node: play a Job with podman. The image is made of the shipped Containerfile; nothing comes over a network.
set -eu
work=/shared/podman
mkdir -p $work/context $work/bin
mount -t cgroup2 none /sys/fs/cgroup # an empty one: podman wants the second version
export PATH=/opt/podman/bin:$PATH CONTAINERS_STORAGE_CONF=$work/storage.conf CONTAINERS_CONF=$work/containers.conf
cat >$CONTAINERS_STORAGE_CONF <<end
[storage]
driver = "overlay"
runroot = "$work/run"
graphroot = "$work/root"
end
cat >$CONTAINERS_CONF <<end
[engine]
conmon_path = ["/opt/podman/bin/conmon"]
helper_binaries_dir = ["/opt/podman/bin"]
cgroup_manager = "cgroupfs"
events_logger = "none"
[engine.runtimes]
crun = ["/opt/podman/bin/crun"]
[containers]
cgroups = "disabled"
default_ulimits = ["nofile=1024:1024", "nproc=8192:8192"]
end
for file in /etc/subuid /etc/subgid; do echo containers:200000:65536 >>$file; done

podman import --quiet "$1" docker.io/library/debian:trixie-slim >/dev/null
# The base has what would be installed, and the client is that of the tests.
cat >$work/bin/apt-get <<'end'
#!/bin/sh
[ "$1" = install ] || exit 0
shift
for name; do case $name in -* | npm) ;; *) dpkg -s "$name" >/dev/null || exit 100 ;; esac done
end
printf '#!/bin/sh\ncp /client/claude /usr/local/bin/\n' >$work/bin/npm
chmod 755 $work/bin/*
podman build --quiet --network none --ulimit nofile=1024:1024 --ulimit nproc=8192:8192 -t localhost/claudebox:latest \
  -v $work/bin:/usr/local/sbin:ro -v /usr/local/bin:/client:ro -f docs/examples/containers/Containerfile $work/context

podman kube play $work/secret.yaml
podman kube play --network host --configmap $work/task.yaml $work/job.yaml
status=$(podman wait fix-typo-17-pod-task)
podman logs fix-typo-17-pod-task
podman kube down $work/job.yaml >/dev/null
exit "$status"
