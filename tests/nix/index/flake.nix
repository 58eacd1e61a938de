# Stands in for nix-index-database: comma with a database of its own.
{
  inputs.nixpkgs.url = "github:NixOS/nixpkgs/nixos-unstable";

  outputs =
    { self, nixpkgs }:
    {
      overlays.nix-index = final: prev: {
        comma-with-db = final.comma // {
          databaseDirectory = ./database;
        };
      };
    };
}
