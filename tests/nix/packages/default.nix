# The same without flakes: what <nixpkgs> means.
{ system ? builtins.currentSystem }:
((import ./flake.nix).outputs { self = { }; }).legacyPackages.${system}
