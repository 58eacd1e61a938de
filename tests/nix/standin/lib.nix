# The part of nixpkgs' library that package.nix uses.
rec {
  concatStrings = builtins.concatStringsSep "";
  concatMapStrings = function: list: concatStrings (map function list);
  fix =
    function:
    let
      result = function result;
    in
    result;
  genAttrs =
    names: function:
    builtins.listToAttrs (
      map (name: {
        inherit name;
        value = function name;
      }) names
    );
  getBin = package: package.bin or package;
  getName = package: package.pname or (builtins.parseDrvName package.name).name;
  licenses.mit = "MIT";
  mapAttrsToList = function: set: map (name: function name set.${name}) (builtins.attrNames set);
  optionalAttrs = condition: set: if condition then set else { };
  optionalString = condition: string: if condition then string else "";
  remove = item: builtins.filter (other: other.outPath != item.outPath);

  # A set of files is a predicate over names relative to the root; a directory of a chosen file is chosen too.
  fileset = {
    fileFilter = keep: path: { inherit keep path; };
    unions = parts: map (part: if builtins.isAttrs part then part else { path = part; keep = _: true; }) parts;
    toSource =
      { root, fileset }:
      builtins.path {
        path = root;
        name = "source";
        filter =
          name: type:
          let
            file = {
              name = baseNameOf name;
              hasExt = extension: builtins.match ".*[.]${extension}" (baseNameOf name) != null;
            };
            within = base: name == base || builtins.substring 0 (builtins.stringLength base + 1) name == "${base}/";
            above = base: within' name base;
            within' = outer: inner: builtins.substring 0 (builtins.stringLength outer + 1) inner == "${outer}/";
          in
          builtins.any (
            part:
            let
              base = toString part.path;
            in
            if type == "directory" then within base || above base else within base && part.keep file
          ) fileset;
      };
  };
}
