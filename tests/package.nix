# The tests that need neither a sandbox of their own nor a network, in the sandbox of a build.
{
  lib,
  stdenvNoCC,
  bashInteractive,
  git,
  python3,
  selection ? "-m pure tests",
}:
stdenvNoCC.mkDerivation {
  name = "claudebox-tests";
  src = lib.fileset.toSource {
    root = ../.;
    fileset = lib.fileset.unions [
      (lib.fileset.fileFilter (file: !(file.hasExt "pyc")) ../src)
      (lib.fileset.fileFilter (file: !(file.hasExt "pyc")) ../tests)
      ../bin
      ../completions
      ../docs
      ../man
      ../pyproject.toml
      ../scripts
    ];
  };
  nativeBuildInputs = [
    bashInteractive # that of a build cannot complete words
    git
    (python3.withPackages (
      packages: with packages; [
        hypothesis
        pytest
        pytest-timeout
        pytest-xdist
      ]
    ))
  ];
  dontConfigure = true;
  buildPhase = ''
    runHook preBuild
    export HOME=$TMPDIR
    python3 -m pytest -n "$NIX_BUILD_CORES" -p no:cacheprovider ${selection}
    runHook postBuild
  '';
  installPhase = "touch $out";
}
