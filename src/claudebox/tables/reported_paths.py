"""What an agent may change and a user should look at: names that tools of the host run or obey, most dangerous first.

A name counts at any depth, in any case, whatever it is: a file, a link, a directory. `NAMES`, `TREES` and `ENDS` are
what is known to be dangerous; `HARMLESS` is what is known not to be; everything else is shown as unknown.
"""

from __future__ import annotations

# Reason, then names. What acts without being asked comes first: shells, editors and agents that look around.
NAMES: tuple[tuple[str, str], ...] = (
    ("direnv runs it", ".envrc"),
    ("the shell plugins `dotenv` and `autoenv` load it", ".env.zsh .autoenv.zsh .autoenv .in .out"),
    ("mise runs what it names", "mise.toml .mise.toml mise.local.toml .mise.local.toml .miserc.toml .rtx.toml"),
    (
        "chooses programs",
        """
        .tool-versions .python-version .ruby-version .node-version .nvmrc .java-version .sdkmanrc
        rust-toolchain rust-toolchain.toml .perl-version .terraform-version global.json
        """,
    ),
    ("an agent on the host starts these servers", ".mcp.json mcp.json"),
    (
        "an agent on the host follows it",
        """
        claude.md claude.local.md agents.md agents.override.md agent.md gemini.md qwen.md crush.md
        conventions.md .cursorrules .windsurfrules .clinerules .roorules .goosehints .aider.conf.yml
        .aiderignore opencode.json opencode.jsonc crush.json .crush.json .rules llms.txt
        """,
    ),
    (
        "the editor obeys it",
        """
        .devcontainer.json .exrc .vimrc .nvimrc .nvim.lua .lvimrc .vimspector.json .dir-locals.el
        .dir-locals-2.el .projectile .netrwhist .sublime-project .emacs .editorconfig .clangd .ccls
        .luarc.json .ycm_extra_conf.py .kateconfig .kateproject .neoconf.json .nvim.toml coc-settings.json
        """,
    ),
    ("the debugger runs it", ".gdbinit .gdbearlyinit .lldbinit .pdbrc .radare2rc .pryrc .irbrc"),
    ("git obeys it", ".gitattributes .gitmodules .lfsconfig .gitconfig .gitignore .mailmap .git-blame-ignore-revs"),
    (
        "hooks of version control run what it names",
        """
        .pre-commit-config.yaml .pre-commit-config.yml .pre-commit-hooks.yaml lefthook.yml lefthook.yaml
        lefthook.toml .lefthook.yml lefthook-local.yml .lintstagedrc .huskyrc .overcommit.yml .hgsub .hgrc
        .captainhook.json captainhook.json prek.toml
        """,
    ),
    (
        "python runs it by itself",
        """
        sitecustomize.py usercustomize.py pyvenv.cfg __pypackages__ python3._pth pybuilddir.txt
        """,
    ),
    ("pytest runs it", "conftest.py pytest.ini .pytest.ini pytest.toml"),
    (
        "tools of Python obey it",
        """
        pyproject.toml setup.cfg setup.py tox.ini tox.toml noxfile.py fabfile.py dodo.py tasks.py pip.conf
        pdm.toml .pdm.toml poetry.toml uv.toml uv.lock pixi.toml hatch.toml .flake8 .pylintrc pylintrc
        mypy.ini .mypy.ini ruff.toml .ruff.toml .coveragerc .bandit .isort.cfg .style.yapf .pydistutils.cfg
        environment.yml environment.yaml requirements.txt pipfile pipfile.lock poetry.lock manage.py
        sconstruct sconscript wscript conanfile.py conanfile.txt meson.build meson_options.txt snakefile
        dvc.yaml mkdocs.yml conf.py gunicorn.conf.py
        """,
    ),
    (
        "package managers of JavaScript run what it names",
        """
        package.json .npmrc .yarnrc .yarnrc.yml .pnpmfile.cjs .pnpmfile.mjs pnpmfile.js .pnp.cjs .pnp.js
        .pnp.loader.mjs pnpm-workspace.yaml bunfig.toml deno.json deno.jsonc package-lock.json
        npm-shrinkwrap.json yarn.lock pnpm-lock.yaml bun.lock bun.lockb lerna.json nx.json turbo.json
        rush.json bower.json .bowerrc .node_repl_history import_map.json deno.lock
        """,
    ),
    (
        "tools of JavaScript run it",
        """
        gulpfile.js gulpfile.ts gruntfile.js jakefile.js .eslintrc .eslintrc.js .eslintrc.cjs .eslintrc.json
        .eslintrc.yml .eslintrc.yaml .babelrc .babelrc.js .babelrc.json .prettierrc .prettierrc.js
        .prettierrc.cjs .prettierrc.json .prettierrc.yaml .prettierrc.toml .stylelintrc .stylelintrc.js
        .stylelintrc.json .postcssrc .postcssrc.js .mocharc.js .mocharc.cjs .mocharc.json .mocharc.yml .nycrc
        .swcrc .parcelrc .taprc .jestrc .releaserc .releaserc.js .commitlintrc .commitlintrc.js .czrc
        tsconfig.json jsconfig.json angular.json project.json wallaby.js brunch-config.js ember-cli-build.js
        """,
    ),
    (
        "make runs it",
        """
        makefile gnumakefile bsdmakefile makefile.am makefile.in configure configure.ac kbuild kconfig
        imakefile nmakefile autogen.sh bootstrap.sh config.status
        """,
    ),
    (
        "a runner of tasks runs it",
        """
        justfile .justfile taskfile.yml taskfile.yaml taskfile.dist.yml taskfile taskfile.dist.yaml rakefile
        rakefile.rb gemfile gemfile.lock gems.rb guardfile capfile vagrantfile thorfile procfile procfile.dev
        brewfile dangerfile fastfile podfile cartfile magefile.go earthfile tiltfile skaffold.yaml
        devfile.yaml .devfile.yaml .run.yml .overmind.env .foreman build.zig build.zig.zon build.ninja
        build.sh .rspec .rubocop.yml .solargraph.yml .simplecov .irb.rb .ruby-gemset cpanfile makefile.pl
        build.pl dist.ini rebar.config mix.exs .iex.exs .formatter.exs gleam.toml shard.yml nimble dub.json
        stack.yaml setup.hs cabal.project .ghci project.clj deps.edn bb.edn shadow-cljs.edn build.boot
        .lein-env .nrepl.edn build.sbt build.sc build.mill .scalafmt.conf .sbtopts .jvmopts dune-project
        .ocamlinit .merlin
        """,
    ),
    (
        "cargo runs what it names",
        """
        build.rs cargo.toml cargo.lock clippy.toml .clippy.toml rustfmt.toml .rustfmt.toml cross.toml
        dist-workspace.toml
        """,
    ),
    (
        "go runs what it names",
        """
        go.mod go.sum go.work go.work.sum go.env .golangci.yml .golangci.yaml .golangci.toml .goreleaser.yml
        .goreleaser.yaml .air.toml
        """,
    ),
    (
        "builds for Java run it",
        """
        pom.xml build.gradle build.gradle.kts settings.gradle settings.gradle.kts init.gradle
        gradle.properties gradlew gradlew.bat mvnw mvnw.cmd build.xml ivy.xml .sdkmanrc bsp.json
        """,
    ),
    ("cmake runs it", "cmakelists.txt cmakepresets.json cmakeuserpresets.json ctestconfig.cmake ctestcustom.cmake"),
    (
        "bazel and its kin obey it",
        """
        .bazelrc user.bazelrc .bazelversion workspace workspace.bazel module.bazel build build.bazel
        .buckconfig .buckconfig.local buck pants.toml .pants.rc xmake.lua premake5.lua cmakelists.local.txt
        """,
    ),
    (
        "builds for .NET run it",
        """
        directory.build.props directory.build.targets directory.packages.props nuget.config msbuild.rsp
        directory.build.rsp .csproj.user omnisharp.json
        """,
    ),
    (
        "php runs what it names",
        """
        composer.json composer.lock .user.ini php.ini .php-cs-fixer.php .php-cs-fixer.dist.php phpunit.xml
        phpunit.xml.dist phpstan.neon rector.php artisan .htaccess .php_cs
        """,
    ),
    ("R runs it", ".rprofile .renviron renv.lock"),
    ("julia runs it", "project.toml manifest.toml localpreferences.toml startup.jl"),
    (
        "nix evaluates it",
        """
        flake.nix flake.lock shell.nix default.nix devenv.nix devenv.yaml devbox.json .envrc.local
        devshell.toml
        """,
    ),
    (
        "containers are made by it",
        """
        dockerfile containerfile .dockerignore compose.yaml compose.yml compose.override.yml
        compose.override.yaml docker-compose.yml docker-compose.yaml docker-compose.override.yml
        docker-compose.override.yaml docker-bake.hcl docker-bake.json chart.yaml helmfile.yaml
        kustomization.yaml kustomization.yml vagrantfile.local
        """,
    ),
    (
        "infrastructure is made by it",
        """
        .terraformrc terraform.rc .terraform.lock.hcl terragrunt.hcl ansible.cfg serverless.yml
        serverless.yaml pulumi.yaml samconfig.toml cdk.json wrangler.toml wrangler.jsonc vercel.json
        netlify.toml fly.toml app.yaml firebase.json render.yaml railway.json
        """,
    ),
    (
        "runs on the forge",
        """
        .gitlab-ci.yml .gitlab-ci.yaml .travis.yml appveyor.yml .appveyor.yml azure-pipelines.yml jenkinsfile
        .drone.yml .drone.yaml .woodpecker.yml .cirrus.yml .cirrus.star bitbucket-pipelines.yml buildspec.yml
        cloudbuild.yaml codeowners renovate.json .renovaterc .renovaterc.json dependabot.yml .readthedocs.yml
        .readthedocs.yaml .builds.yml .gitpod.yml .gitpod.dockerfile action.yml action.yaml codemagic.yaml
        bitrise.yml wercker.yml .semaphore.yml .sourcehut.yml
        """,
    ),
    (
        "a shell runs it",
        """
        .bashrc .bash_profile .bash_login .bash_logout .profile .zshrc .zshenv .zprofile .zlogin .kshrc .cshrc
        .tcshrc .login .inputrc .screenrc .tmux.conf .xinitrc .xsession .xprofile .wgetrc .curlrc .netrc
        .lesskey .psqlrc .sqliterc .my.cnf .mongorc.js .ackrc .ripgreprc .agignore desktop.ini autorun.inf
        .directory
        """,
    ),
)

# Reason, then names of directories: all that lies in one of them counts.
TREES: tuple[tuple[str, str], ...] = (
    (
        "an agent on the host runs and follows what is here",
        """
        .claude .cursor .gemini .codex .windsurf .cline .roo .kilocode .continue .opencode .crush .qwen .aider
        .goose .amp .amazonq .kiro .trae .augment .junie .agents .agent .factory .zencoder .copilot .openhands
        .serena .claude-plugin
        """,
    ),
    (
        "the editor runs what is named here",
        """
        .vscode .vscode-test .idea .fleet .zed .devcontainer .run .vs .settings .nvim .vim .helix .kakrc
        .sublime .metals .bloop .bsp
        """,
    ),
    ("mise runs what is here", ".mise .rtx mise"),
    ("hooks of version control", ".husky .githooks .git-hooks .hg .jj .svn .bzr .pijul _darcs .sl .lefthook .hooks"),
    (
        "runs on the forge",
        """
        .github .gitlab .gitea .forgejo .circleci .buildkite .woodpecker .azuredevops .tekton .semaphore
        .harness .gitpod .ci .builds .travis
        """,
    ),
    (
        "tools take programs and libraries from here",
        """
        node_modules .venv venv .virtualenv virtualenv .tox .nox .direnv .devenv .devbox bower_components
        jspm_packages .yarn .pnpm-store .pnp site-packages .eggs .bundle __pypackages__ .pixi .conda .conan
        .luarocks lua_modules elm-stuff _opam
        """,
    ),
    ("cargo runs programs named here", ".cargo"),
    ("builds for Java run it", ".mvn .gradle buildsrc"),
    ("plugins that tools load", ".terraform .pulumi .serverless .sops .docker .nix .guix .dvc .bazel .buckd .mcp"),
)

# Reason, then ends of names.
ENDS: tuple[tuple[str, str], ...] = (
    ("python runs it by itself", ".pth ._pth .egg-link"),
    ("the editor obeys it", ".code-workspace .sublime-project .code-profile .iml .ipr .vimrc .nvim.lua .el.gz"),
    ("agents on the host follow it", ".mdc"),
    ("the desktop runs it", ".desktop .service .socket .timer .appimage .flatpakref .webloc .url .lnk .scf .command"),
    ("tools of JavaScript run it", ".config.js .config.ts .config.cjs .config.mjs .config.mts .config.cts .conf.js"),
    ("make runs it", ".mk .mak .make .ninja"),
    (
        "builds run it",
        """
        .cmake .gradle .gradle.kts .sbt .bzl .bazel .gemspec .podspec .cabal .nimble .rockspec .csproj .fsproj
        .vbproj .vcxproj .sln .slnx .targets .props .pro .pri .gyp .gypi .gn .gni
        """,
    ),
    ("nix evaluates it", ".nix"),
    ("infrastructure is made by it", ".tf .tf.json .hcl .dockerfile .containerfile .bicep"),
    ("opening it runs what is in it", ".ipynb .xlsm .docm .pptm .xls .hta .chm"),
    ("it is code that is run instead of its source", ".pyc .pyo .pyd .elc .luac .jsc .snap"),
)

# Programs and libraries, whether they may be executed or not.
PROGRAMS = (
    ".sh .bash .zsh .fish .ksh .csh .ps1 .psm1 .psd1 .bat .cmd .exe .com .msi .dll .so .dylib .a .o .ko .jar .war .ear "
    ".class .node .wasm .deb .rpm .apk .dmg .pkg .run .bin .whl .gem .nupkg .vsix .crx .xpi .phar .scpt .applescript "
    ".awk .sed .tcl .expect .vbs .wsf .reg"
)

# What is known to do nothing by itself: text, sources and pictures, not executable, without a dot in front of any
# part of its path. A program that a user starts may of course read them: that is the work itself.
HARMLESS = (
    "txt md markdown rst adoc tex bib org log csv tsv diff patch "
    "py pyi pyx js jsx ts tsx mjs cjs mts cts vue svelte astro html htm xhtml css scss sass less styl "
    "c h cc hh cpp hpp cxx hxx inl m mm cu cuh rs go java kt scala groovy clj cljs cljc erl hrl ex eex heex hs lhs "
    "ml mli fs fsi fsx cs vb swift dart rb erb php lua pl pm t r rmd jl nim zig d v sv vhd vhdl asm s f f90 f95 "
    "sql graphql gql proto thrift avsc pest g4 y l ll "
    "png jpg jpeg gif webp avif bmp ico tif tiff svg eps ttf otf woff woff2 eot mp3 mp4 m4a ogg opus wav flac webm mov "
    "pdf epub parquet arrow npy npz pb onnx safetensors gguf "
    "map golden expected approved po pot mo srt vtt"
)  # fmt: skip
HARMLESS_NAMES = frozenset((
    "license", "licence", "copying", "readme", "changelog", "changes", "news", "authors", "contributors", "notice",
    "todo", "version", ".gitkeep", ".keep", ".ds_store", ".nojekyll", "py.typed",
))  # fmt: skip
# Directories with a dot that hold nothing but what a tool can make again.
CACHES = frozenset((".cache", ".mypy_cache", ".pytest_cache", ".ruff_cache", ".hypothesis", ".nyc_output",
                    ".ipynb_checkpoints", ".sass-cache", ".parcel-cache", ".eslintcache"))  # fmt: skip

# In a git directory: what git writes as a matter of course. Everything else is named.
GIT_TREES = frozenset(("objects", "refs", "logs", "lfs"))
GIT_FILES = frozenset((
    "index", "HEAD", "ORIG_HEAD", "FETCH_HEAD", "MERGE_HEAD", "MERGE_MSG", "MERGE_MODE", "MERGE_RR", "AUTO_MERGE",
    "SQUASH_MSG", "CHERRY_PICK_HEAD", "REVERT_HEAD", "REBASE_HEAD", "COMMIT_EDITMSG", "TAG_EDITMSG", "EDIT_DESCRIPTION",
    "packed-refs", "gc.log", "gc.pid", "info/refs", "objects/info/packs", "objects/info/commit-graph", "description",
))  # fmt: skip
# Parts of a git directory that a later command of the user would go on with or obey.
GIT_PARTS: tuple[tuple[str, str], ...] = (
    ("config", "git runs programs named here"),
    ("config.worktree", "git runs programs named here"),
    ("hooks", "git runs these"),
    ("commondir", "git looks elsewhere for its configuration"),
    ("rebase-merge", "a rebase is under way: going on with it runs what is listed there"),
    ("rebase-apply", "a rebase is under way: going on with it applies what is there"),
    ("sequencer", "a sequence of commits is under way"),
    ("objects/info/alternates", "git borrows objects from there"),
    ("objects/info/http-alternates", "git borrows objects from there"),
    ("info/attributes", "chooses programs that git runs"),
    ("info/grafts", "changes what history git shows"),
    ("info/exclude", "hides files from `git status`"),
    ("info/sparse-checkout", "hides files of the checkout"),
    ("refs/replace", "changes what git shows"),
    ("remotes", "git fetches and pushes there"),
    ("branches", "git fetches and pushes there"),
    ("modules", "repositories of submodules, with hooks of their own"),
    ("worktrees", "git directories of other checkouts"),
    ("shallow", "changes what history git shows"),
)
