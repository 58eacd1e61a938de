{
  description = "coding agents with every permission, in a sandbox without your secrets";

  inputs = {
    nixpkgs.url = "github:NixOS/nixpkgs/nixos-unstable";
    # The list of programs that comma looks into is made of that branch.
    nix-index-database = {
      url = "github:nix-community/nix-index-database";
      inputs.nixpkgs.follows = "nixpkgs";
    };
  };

  outputs =
    {
      self,
      nixpkgs,
      nix-index-database,
    }:
    let
      inherit (nixpkgs) lib;
      eachSystem = lib.genAttrs [
        "x86_64-linux"
        "aarch64-linux"
      ];
      # The client is not free software. Whoever names claudebox-full has chosen it, and nothing else that is unfree.
      pkgsFor =
        system:
        import nixpkgs {
          inherit system;
          config.allowUnfreePredicate = package: lib.getName package == "claude-code";
          overlays = [ self.overlays.default ];
        };
    in
    {
      overlays.default = final: prev: {
        claudebox = final.callPackage ./package.nix {
          commaWithDatabase = (nix-index-database.overlays.nix-index final prev).comma-with-db;
          nixpkgsSource = nixpkgs.outPath;
        };
        claudebox-full = final.claudebox.override { bundledClaude = final.claude-code; };
      };

      packages = eachSystem (system: {
        inherit (pkgsFor system) claudebox claudebox-full;
        default = self.packages.${system}.claudebox;
      });

      checks = eachSystem (system: {
        inherit (self.packages.${system}) claudebox;
        tests = (pkgsFor system).callPackage ./tests/package.nix { };
      });

      devShells = eachSystem (
        system:
        let
          pkgs = pkgsFor system;
        in
        {
          default = pkgs.mkShell {
            packages = with pkgs; [
              bubblewrap
              git
              nodejs
              passt
              python3
              slirp4netns
              uv
            ];
          };
        }
      );

      formatter = eachSystem (system: (pkgsFor system).nixfmt-tree);
    };
}
