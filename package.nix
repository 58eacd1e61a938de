# claudebox with every program that it starts named by its place in the store: nothing is looked up in PATH.
# There is no wrapper: one script, whose interpreter runs isolated from the person's Python (-IS).
{
  lib,
  stdenvNoCC,
  # What starts the sandbox.
  bashInteractive,
  bubblewrap,
  coreutils,
  glibc,
  passt,
  python3,
  slirp4netns,
  # What is on PATH inside, besides bash and coreutils.
  comma,
  curl,
  fd,
  findutils,
  gawk,
  git,
  gnugrep,
  gnused,
  gnutar,
  gzip,
  jq,
  less,
  nix,
  nodejs,
  ripgrep,
  # None of these is the name of a package, or callPackage would fill it in.
  commaWithDatabase ? null, # comma of nix-index-database, which brings the list of all programs
  nixpkgsSource ? null, # the tree that `packages` of a profile and comma take programs from
  bundledClaude ? null, # a client to use instead of the host's
}:
let
  source = ./src/claudebox/__init__.py;
  version = builtins.head (builtins.match ''.*__version__ = "([^"]+)".*'' (builtins.readFile source));
  comma' = if commaWithDatabase == null then comma else commaWithDatabase;
  libraries = [
    python3.pkgs.cryptography
  ];

  loaders = {
    x86_64-linux = "/lib64/ld-linux-x86-64.so.2";
    aarch64-linux = "/lib/ld-linux-aarch64.so.1";
  };
  loader = loaders.${stdenvNoCC.hostPlatform.system};

  # The constants of src/claudebox/build_paths.py.
  baked = {
    TOOLS = {
      "," = "${comma'}/bin/,";
      bash = "${bashInteractive}/bin/bash";
      bwrap = "${bubblewrap}/bin/bwrap";
      env = "${coreutils}/bin/env";
      git = "${git}/bin/git";
      nix = "${nix}/bin/nix";
      node = "${nodejs}/bin/node";
      pasta = "${passt}/bin/pasta";
      python3 = python3.interpreter;
      slirp4netns = "${slirp4netns}/bin/slirp4netns";
    }
    // lib.optionalAttrs (bundledClaude != null) { claude = "${bundledClaude}/bin/claude"; };
    STORE_PATH = map (package: "${lib.getBin package}/bin") [
      coreutils
      git
      curl
      jq
      ripgrep
      fd
      nix
      comma'
      bashInteractive
      nodejs
      # Without these, hardly a script would run.
      gnugrep
      gnused
      gawk
      findutils
      gnutar
      gzip
      less
    ];
    LOADER = [
      loader
      "${glibc}/lib/${baseNameOf loader}"
    ];
    NIXPKGS = lib.optionalString (nixpkgsSource != null) "path:${nixpkgsSource}";
    NIX_INDEX_DATABASE = lib.optionalString (commaWithDatabase != null) "${commaWithDatabase.databaseDirectory}";
    LIBRARIES = map (module: "${module}/${python3.sitePackages}") (
      lib.remove python3 (python3.pkgs.requiredPythonModules libraries)
    );
  };
  # Lists are tuples there; strings and tables are written as in JSON.
  inPython =
    value:
    if builtins.isList value then
      "(${lib.concatMapStrings (item: "${inPython item}, ") value})"
    else
      builtins.toJSON value;
in
stdenvNoCC.mkDerivation {
  pname = if bundledClaude == null then "claudebox" else "claudebox-full";
  inherit version;

  src = lib.fileset.toSource {
    root = ./.;
    fileset = lib.fileset.unions [
      ./completions
      ./man
      ./scripts/install
      (lib.fileset.fileFilter (file: !(file.hasExt "pyc")) ./src)
    ];
  };

  # A constant that build_paths.py does not know would be lost without a word.
  bakedNames = builtins.attrNames baked;
  bakedValues = lib.concatStrings (lib.mapAttrsToList (name: value: "${name} = ${inPython value}\n") baked);
  postPatch = ''
    for name in $bakedNames; do
      grep -q "^$name:" src/claudebox/build_paths.py || { echo "build_paths.py has no $name"; exit 1; }
    done
    printf '%s' "$bakedValues" >> src/claudebox/build_paths.py
  '';

  dontConfigure = true;
  dontBuild = true;
  installPhase = ''
    runHook preInstall
    PYTHON=${python3.interpreter} sh scripts/install --prefix "$out" --without-libraries
    runHook postInstall
  '';

  doInstallCheck = stdenvNoCC.buildPlatform.canExecute stdenvNoCC.hostPlatform;
  installCheckPhase = ''
    runHook preInstallCheck
    [ "$("$out/bin/claudebox" --version)" = "claudebox $version" ]
    runHook postInstallCheck
  '';

  meta = {
    description = "coding agents with every permission, in a sandbox without your secrets";
    license = lib.licenses.mit;
    mainProgram = "claudebox";
    platforms = builtins.attrNames loaders;
  };
}
