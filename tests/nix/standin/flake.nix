# Stands in for nixpkgs where flake.nix is evaluated and built without a network: the same functions and names, few of
# them, and packages made of Debian's programs (relocation.py).
{
  outputs =
    { self }:
    let
      lib = import ./lib.nix;
    in
    {
      inherit lib;
      legacyPackages = lib.genAttrs [ "x86_64-linux" "aarch64-linux" ] (system: import self { inherit system; });
    };
}
