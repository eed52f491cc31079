#!/bin/sh
# Makes an environment of Debian's Python for aarch64, which qemu runs: `tools/aarch64.sh FOLDER`.
# All of it is in that folder; apt only downloads.
set -e
mkdir -p "$1" && cd "$1" && here=$PWD
test ! -x bin/python || exit 0

mkdir -p apt/lists/partial apt/archives/partial root bin
: > apt/status # of packages that are installed: none, so that all is downloaded
get() {
  apt-get -qq -o APT::Architecture=arm64 -o APT::Architectures::=arm64 -o APT::Sandbox::User=root \
    -o Acquire::Languages=none -o Debug::NoLocking=1 -o Dir::Cache="$here/apt" \
    -o Dir::State="$here/apt" -o Dir::State::status="$here/apt/status" "$@"
}
get update
get install --yes --download-only --no-install-recommends python3-minimal libpython3-stdlib libstdc++6
for package in apt/archives/*.deb; do dpkg -x "$package" root; done

# Python finds the environment by its own name.
echo "home = $here/root/usr/bin" > pyvenv.cfg
cat > bin/python.new <<END
#!/bin/sh
exec qemu-aarch64-static -L '$here/root' -0 "\$0" '$here/root/usr/bin/python3' "\$@"
END
chmod +x bin/python.new
bin/python.new -c 'import os, sysconfig; os.makedirs(sysconfig.get_path("purelib"), exist_ok=True)'
mv bin/python.new bin/python
