# Sourced by the other scripts: lets pkg-config find what tools/setup unpacked into .deps, if it did.
for _dir in "$PWD"/.deps/usr/lib/*/pkgconfig "$PWD"/.deps/usr/lib/pkgconfig "$PWD"/.deps/usr/share/pkgconfig; do
  if [ -d "$_dir" ]; then
    case ":${PKG_CONFIG_PATH:-}:" in
      *":$_dir:"*) ;;
      *) PKG_CONFIG_PATH=$_dir${PKG_CONFIG_PATH:+:$PKG_CONFIG_PATH} ;;
    esac
  fi
done
unset _dir
export PKG_CONFIG_PATH=${PKG_CONFIG_PATH:-}
