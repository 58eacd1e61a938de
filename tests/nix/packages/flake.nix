# A package set small enough to build in a second, out of one static busybox and one static bash.
# It offers what the tests ask nixpkgs for: programs, outputs, failures and a dev shell.
{
  description = "packages for tests";

  outputs =
    { self }:
    let
      # Sources of their own, so that a change of this file builds nothing anew. busybox goes by its name.
      seed = builtins.path {
        path = ./seed;
        name = "seed";
      };
      setup = builtins.path {
        path = ./stdenv;
        name = "stdenv";
      };
      busybox = "${seed}/busybox";

      make =
        system: name: extra: commands:
        derivation (
          {
            inherit name system;
            builder = busybox;
            args = [
              "sh"
              "-euc"
              ''
                for tool in chmod cp ln mkdir sleep; do alias $tool="${busybox} $tool"; done
                eval "$commands"
              ''
            ];
            inherit commands;
          }
          // extra
        );

      # A package with one program, which is a shell script.
      program =
        system: name: version: text:
        make system "${name}-${version}" { inherit text; } ''
          mkdir -p $out/bin
          echo "#!${busybox} sh" > $out/bin/${name}
          echo "$text" >> $out/bin/${name}
          chmod 755 $out/bin/${name}
        ''
        // {
          pname = name;
          inherit version;
          meta.mainProgram = name;
        };

      applets =
        system: name: names:
        make system "${name}-1.35" { inherit names; } ''
          mkdir -p $out/bin
          for applet in $names; do ln -s ${busybox} $out/bin/$applet; done
        '';

      packagesFor = system: rec {
        hello = program system "hello" "2.12" ''echo "Hello, ''${1:-world}!"'';
        # Both have `tool` in them: which of them is found tells in which order they came.
        first = make system "first-1" { } ''
          mkdir -p $out/bin; echo "#!${busybox} sh
          echo first" > $out/bin/tool; chmod 755 $out/bin/tool
        '';
        second = make system "second-1" { } ''
          mkdir -p $out/bin; echo "#!${busybox} sh
          echo second" > $out/bin/tool; chmod 755 $out/bin/tool
        '';
        outputs =
          make system "outputs-1"
            {
              outputs = [
                "bin"
                "out"
                "dev"
              ];
            }
            ''
              mkdir -p $bin/bin $out/lib $dev/bin
              echo "#!${busybox} sh
              echo from bin" > $bin/bin/outputs
              echo "#!${busybox} sh
              echo from dev" > $dev/bin/outputs-config
              chmod 755 $bin/bin/outputs $dev/bin/outputs-config
            ''
          // {
            meta.outputsToInstall = [ "bin" ];
          };
        broken = make system "broken-1" { } "echo this build fails on purpose >&2; exit 7";
        slow = make system "slow-1" { } "echo starting >&2; sleep 60; mkdir $out";
        unfree = throw "Package 'unfree-1' in tests has an unfree license ('unfree'), refusing to evaluate.";
        needs-hello = make system "needs-hello-1" { } ''
          mkdir -p $out/bin; echo "#!${busybox} sh
          exec ${hello}/bin/hello dependency" > $out/bin/needs-hello; chmod 755 $out/bin/needs-hello
        '';
        nested.hello = hello;

        # What a store-only PATH rests on.
        coreutils = applets system "coreutils" "cat chmod cp cut date dirname env false head id ln ls mkdir mktemp mv printf pwd readlink realpath rm sleep sort stat tail test touch tr true uname wc sha256sum base64 grep sed awk find wget xargs tar gzip ps";
        bash = make system "bash-5.2" { } ''
          mkdir -p $out/bin; cp ${seed}/bash $out/bin/bash; ln -s bash $out/bin/sh
        '';
      };
      systems = [
        "x86_64-linux"
        "aarch64-linux"
      ];
      each =
        function:
        builtins.listToAttrs (
          map (system: {
            name = system;
            value = function system;
          }) systems
        );
    in
    {
      inherit seed;
      legacyPackages = each packagesFor;
      packages = each (system: removeAttrs (packagesFor system) [ "nested" ]);
      devShells = each (system: {
        # `nix develop` wants a builder named bash, and a stdenv to source.
        default = derivation {
          inherit system;
          name = "tests-shell";
          outputs = [ "out" ];
          builder = "${seed}/bash";
          args = [
            "-c"
            "echo > $out"
          ];
          stdenv = setup;
          packages = [ (packagesFor system).hello ];
          FROM_SHELL = "a value with blanks";
          shellHook = "export HOOK=ran";
        };
      });
    };
}
