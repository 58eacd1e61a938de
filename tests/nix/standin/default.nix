{
  system ? builtins.currentSystem,
  overlays ? [ ],
  config ? { },
}:
let
  lib = import ./lib.nix;
  programs = builtins.fromJSON (builtins.readFile ./programs.json);
  inStore = name: {
    inherit name;
    type = "derivation";
    outPath = builtins.storePath programs.${name};
  };
  seed = inStore "seed";

  callWith =
    scope: file: arguments:
    let
      function = import file;
      wanted = builtins.functionArgs function;
      call =
        changes:
        function (builtins.intersectAttrs wanted scope // arguments // changes)
        // {
          override = more: call (changes // more);
        };
    in
    call { };

  mkDerivation =
    attributes:
    let
      name = attributes.name or "${attributes.pname}-${attributes.version}";
      phases = ''
        set -eu
        export PATH=${inStore "coreutils"}/bin:${seed}/applets TMPDIR=$PWD
        for package in ''${nativeBuildInputs-}; do PATH=$package/bin:$PATH; done
        runHook() { eval "''${!1-}"; }
        cp -r "$src" source
        chmod -R u+w source
        cd source
        eval "''${postPatch-}"
        eval "''${buildPhase-}"
        eval "$installPhase"
        if [ "''${doInstallCheck-}" ]; then eval "$installCheckPhase"; fi
      '';
    in
    derivation (
      removeAttrs attributes [ "meta" "passthru" ]
      // {
        inherit name system;
        # What was added to the store as it is has no references: whatever it rests on is named here.
        closure = map inStore [ "bash" "glibc" "python3" ];
        builder = "${seed}/bash";
        args = [ "-c" phases ];
      }
    )
    // {
      meta = attributes.meta or { };
    }
    // (attributes.passthru or { });

  packages =
    self:
    lib.genAttrs (builtins.attrNames programs) inStore
    // {
      inherit lib;
      callPackage = callWith self;
      bashInteractive = inStore "bash";
      stdenvNoCC = {
        inherit mkDerivation;
        hostPlatform.system = system;
        buildPlatform.canExecute = platform: platform.system == builtins.currentSystem;
      };
      python3 = inStore "python3" // {
        interpreter = "${inStore "python3"}/bin/${programs.pythonName}";
        sitePackages = "lib/${programs.pythonName}/site-packages";
        withPackages =
          choose: builtins.deepSeq (map (module: module.outPath) (choose self.python3.pkgs)) (inStore "python-for-tests");
        pkgs = lib.genAttrs [ "hypothesis" "pytest" "pytest-timeout" "pytest-xdist" ] (_: inStore "python3") // {
          cryptography = inStore "cryptography";
          requiredPythonModules = modules: [ self.python3 ] ++ modules;
        };
      };
      mkShell =
        { packages }:
        mkDerivation {
          name = "shell";
          inherit packages;
        };
      nixfmt-tree = inStore "coreutils" // {
        drvPath = "/nix/store/00000000000000000000000000000000-nixfmt-tree.drv";
      };
      uv = inStore "coreutils";
      # Refused as nixpkgs refuses what is not free.
      claude-code =
        if config.allowUnfreePredicate or (_: false) { pname = "claude-code"; } then
          inStore "claude-code"
        else
          throw "Package 'claude-code' has an unfree license, refusing to evaluate.";
    };
in
lib.fix (
  self: builtins.foldl' (previous: overlay: previous // overlay self previous) (packages self) overlays
)
