"""What a user should look at before working in a project again: names that tools of the host run or obey.

A name counts at any depth and in any case, whatever it is: a file, a link, a directory. `*` stands for anything in a
name. Everything that no row matches is the user's own work, which is named first anyway.
"""

from __future__ import annotations

# Run or obeyed without being asked, by whom, most dangerous first. A row ends in the names of files, or of directories
# with all that lies in them.
UNASKED: tuple[tuple[str, str, str], ...] = (
    ("direnv runs it when you enter", ".envrc .envrc.*", ".direnv .devenv .shadowenv.d"),
    ("shell plugins load it when you enter", ".env .env.zsh .autoenv* .in .out .rvmrc", ""),
    (
        "mise runs what it names when you enter",
        "mise.toml .mise.toml mise.*.toml .mise.*.toml .miserc.toml .rtx.toml",
        ".mise .rtx mise",
    ),
    (
        "python runs it when it starts",
        "sitecustomize.py usercustomize.py *.pth *._pth *.egg-link pyvenv.cfg",
        "__pypackages__",
    ),
    ("python runs it instead of its source", "*.pyc *.pyo", ""),
    ("git obeys it", ".gitattributes .gitmodules .lfsconfig .gitconfig", ""),
    (
        "version control runs it when you commit or check out",
        """
        .pre-commit-* lefthook* .lefthook* .lintstagedrc* lint-staged.config.* .huskyrc* .overcommit.yml .hgsub
        .hgrc .captainhook.json captainhook.json prek.toml
        """,
        """
        .husky .githooks .git-hooks .hooks .hg .jj .svn .bzr .pijul _darcs .sl .lefthook
        """,
    ),
    ("an agent on the host starts these servers", ".mcp.json mcp.json", ".mcp"),
    (
        "an agent on the host follows it",
        """
        claude.md claude.*.md agents.md agents.*.md agent.md gemini.md qwen.md crush.md conventions.md .cursorrules
        .windsurfrules .clinerules .roorules .goosehints .aider* opencode.json* *crush.json .rules llms*.txt *.mdc
        """,
        """
        .claude .claude-plugin .cursor .gemini .codex .windsurf .cline .roo .kilocode .continue .opencode .crush
        .qwen .aider .goose .amp .amazonq .kiro .trae .augment .junie .agents .agent .factory .zencoder .copilot
        .openhands .serena
        """,
    ),
    (
        "the editor obeys it when you open the project",
        """
        .devcontainer*.json *.code-workspace *.sublime-project .exrc .vimrc .nvimrc *.nvim.lua .lvimrc
        .vimspector.json .dir-locals*.el .projectile .emacs .clangd .ccls .luarc.json .ycm_extra_conf.py .kate*
        .neoconf.json .nvim.toml coc-settings.json omnisharp.json *.iml *.ipr
        """,
        """
        .vscode .vscode-test .idea .fleet .zed .devcontainer .run .vs .settings .nvim .vim .helix .sublime .metals
        .bloop .bsp
        """,
    ),
    (
        "chooses the programs that you start here",
        """
        .tool-versions .python-version* .ruby-version .ruby-gemset .node-version .nvmrc .java-version .sdkmanrc
        rust-toolchain* .perl-version .terraform-version global.json .bazelversion
        """,
        "",
    ),
    ("cargo runs programs named here", "", ".cargo"),
    ("the debugger runs it", ".gdbinit .gdbearlyinit .lldbinit .pdbrc .radare2rc .pryrc .irbrc .ghci .ocamlinit", ""),
    (
        "runs on the forge when you push",
        """
        .gitlab-ci* .travis.yml appveyor.yml .appveyor.yml azure-pipelines* jenkinsfile* .drone.y* .woodpecker.y*
        .cirrus.* bitbucket-pipelines.yml buildspec*.yml cloudbuild*.y* .readthedocs.y* .builds.yml .gitpod*
        action.y*ml codemagic.yaml bitrise.yml wercker.yml renovate.json* .renovaterc* dependabot.yml codeowners
        """,
        """
        .github .gitlab .gitea .forgejo .circleci .buildkite .woodpecker .azuredevops .tekton .semaphore .harness
        .gitpod .ci .builds
        """,
    ),
    (
        "the desktop opens or runs it",
        """
        *.desktop *.service *.socket *.timer *.lnk *.scf autorun.inf desktop.ini .directory
        """,
        "",
    ),
    (
        "a shell or a tool obeys it in a home",
        """
        .bash* .profile .zsh* .zprofile .zlog* .ksh* .csh* .tcsh* .login .inputrc .screenrc .tmux.conf .xinitrc
        .xsession .xprofile .wgetrc .curlrc .netrc .lesskey .psqlrc .sqliterc .my.cnf .mongorc.js .ackrc .ripgreprc
        .rprofile .renviron
        """,
        "",
    ),
)
# Dotfiles at the top are for tools; these are for people, or for what is above.
HARMLESS_DOTFILES = frozenset((
    ".gitignore", ".gitkeep", ".keep", ".dockerignore", ".npmignore", ".editorconfig", ".env.example",
    ".mailmap", ".git-blame-ignore-revs", ".prettierignore", ".eslintignore", ".nojekyll", ".ds_store",
))  # fmt: skip
DOTFILE = "a tool may obey it"

# Run or obeyed when the user builds, tests, installs or opens something: by whom, then names of files.
ASKED: tuple[tuple[str, str], ...] = (
    ("pytest runs it", "conftest.py pytest.ini .pytest.ini pytest.toml"),
    (
        "tools of Python run or obey it",
        """
        pyproject.toml setup.cfg setup.py *_build.py build.py tox.* noxfile.py fabfile.py dodo.py tasks.py pip.conf
        *requirements*.txt *requirements*.in constraints*.txt pdm.* poetry.* uv.* pixi.* hatch.toml .flake8
        *pylintrc *mypy.ini *ruff.toml .coveragerc environment*.y*ml pipfile* manage.py scons* wscript conanfile.*
        meson* snakefile dvc.yaml mkdocs.y*ml conf.py *.conf.py
        """,
    ),
    (
        "npm and its kin run what it names",
        """
        package.json package-lock.json npm-shrinkwrap.json .npmrc .yarnrc* yarn.lock *pnpmfile.* pnpm-* .pnp.*
        bunfig.toml bun.lock* deno.* import_map.json lerna.json nx.json turbo.json rush.json bower.json .bowerrc
        """,
    ),
    (
        "tools of JavaScript run it",
        """
        gulpfile* gruntfile* jakefile* *.config.js *.config.ts *.config.?js *.config.?ts *.config.*.js *.config.*.ts
        *.config.*.?js *.conf.js *.conf.ts *.conf.?js *.conf.?ts .*rc .*rc.js .*rc.cjs .*rc.mjs .*rc.ts .*rc.json
        .*rc.y*ml .*rc.toml tsconfig*.json jsconfig*.json angular.json project.json wallaby.* ember-cli-build.js
        """,
    ),
    ("make runs it", "*makefile* *.mk *.mak *.make configure configure.ac kbuild kconfig autogen.sh bootstrap.sh"),
    (
        "a runner of tasks runs it",
        """
        *justfile taskfile* rakefile* *.rake gemfile* gems.rb *.gemspec guardfile capfile vagrantfile* thorfile
        procfile* brewfile dangerfile fastfile podfile cartfile magefile* earthfile tiltfile skaffold.yaml
        *devfile.yaml build.sh build.zig* *.ninja .rspec .rubocop* cpanfile build.pl dist.ini rebar.config mix.exs
        .iex.exs *.exs gleam.toml shard.yml *.nimble dub.* stack.yaml setup.hs cabal.project* *.cabal project.clj
        deps.edn bb.edn shadow-cljs.edn *.sbt build.sc build.mill .sbtopts .jvmopts dune-project .merlin *.rockspec
        *.podspec
        """,
    ),
    ("cargo runs what it names", "build.rs cargo.toml cargo.lock *clippy.toml *rustfmt.toml cross.toml dist-*.toml"),
    ("go runs what it names", "go.mod go.sum go.work* go.env .golangci.* .goreleaser.* .air.toml"),
    (
        "builds for Java run it",
        """
        pom.xml *.gradle *.gradle.kts gradle.properties gradlew* mvnw* build.xml ivy.xml bsp.json jvm.config
        maven.config extensions.xml
        """,
    ),
    ("cmake runs it", "cmakelists*.txt cmake*presets.json ctest*.cmake *.cmake"),
    (
        "bazel and its kin run it",
        """
        .bazelrc *.bazelrc workspace *.bazel *.bzl build buck .buckconfig* pants.toml .pants.rc xmake.lua
        premake5.lua *.gyp *.gypi *.gn *.gni *.pro *.pri
        """,
    ),
    (
        "builds for .NET run it",
        """
        directory.*.props directory.*.targets directory.*.rsp nuget.config *.rsp *.csproj *.fsproj *.vbproj
        *.vcxproj *.sln *.slnx *.targets *.props
        """,
    ),
    (
        "php runs what it names",
        """
        composer.* .user.ini php.ini .php* phpunit.xml* phpstan.* rector.php artisan .htaccess
        """,
    ),
    ("R or julia run it", "renv.lock project.toml manifest.toml localpreferences.toml startup.jl"),
    ("nix evaluates it", "*.nix flake.lock devenv.yaml devbox.json devshell.toml"),
    (
        "containers are made by it",
        """
        *dockerfile* *containerfile* *compose*.y*ml docker-bake.* chart.yaml helmfile.yaml kustomization.y*ml
        """,
    ),
    (
        "infrastructure is made by it",
        """
        *.tf *.tf.json *.hcl *.bicep .terraformrc terraform.rc ansible.cfg serverless.* pulumi.* samconfig.toml
        cdk.json wrangler.* vercel.json netlify.toml fly.toml app.yaml firebase.json render.yaml railway.json
        """,
    ),
    ("opening it runs what is in it", "*.ipynb *.xlsm *.docm *.pptm *.hta *.chm"),
    (
        "a program",
        """
        *.sh *.bash *.zsh *.fish *.ps1 *.bat *.cmd *.exe *.msi *.dll *.so *.dylib *.jar *.war *.class *.node *.wasm
        *.deb *.rpm *.apk *.appimage *.dmg *.run *.whl *.gem *.nupkg *.vsix *.crx *.xpi *.phar *.vbs *.reg *.elc
        *.luac
        """,
    ),
)
PROGRAM = "a program"

# Directories of other people's code: it brings settings for editors and the like along, which nobody enters.
DEPENDENCIES = frozenset((
    "node_modules", ".venv", "venv", ".virtualenv", "virtualenv", ".tox", ".nox", "bower_components", ".yarn",
    ".pnpm-store", ".eggs", ".bundle", ".pixi", ".conda", "lua_modules", "elm-stuff", "_opam",
))  # fmt: skip
# Directories that a tool can make again: what changes in them is counted. So are those with a CACHEDIR.TAG, and what
# git ignores.
OUTPUT = DEPENDENCIES | frozenset((
    ".gradle", ".next", ".nuxt", ".svelte-kit", ".turbo", ".cache", ".mypy_cache", ".pytest_cache", ".ruff_cache",
    ".hypothesis", ".nyc_output", ".ipynb_checkpoints", ".sass-cache", ".parcel-cache", ".terraform",
))  # fmt: skip
# In one that was there before, what is run all the same: by python, and by a shell that looks for programs there.
RUN_FROM_OUTPUT = "sitecustomize.py usercustomize.py *.pth *._pth *.egg-link *.pyc *.pyo"
BINARIES = frozenset(("bin", ".bin", "scripts"))
TAKEN = "your shell and tools take programs from here"

# In a git directory: what git writes as a matter of course. Everything else is named.
GIT_TREES = frozenset(("objects", "refs", "logs", "lfs"))
GIT_FILES = frozenset((
    "index", "HEAD", "ORIG_HEAD", "FETCH_HEAD", "MERGE_HEAD", "MERGE_MSG", "MERGE_MODE", "MERGE_RR", "AUTO_MERGE",
    "SQUASH_MSG", "CHERRY_PICK_HEAD", "REVERT_HEAD", "REBASE_HEAD", "COMMIT_EDITMSG", "TAG_EDITMSG", "EDIT_DESCRIPTION",
    "packed-refs", "gc.log", "gc.pid", "info/refs", "objects/info/packs", "objects/info/commit-graph", "description",
))  # fmt: skip
# Parts of a git directory that a later command of the user would go on with or obey.
GIT_PARTS = (
    "config", "config.worktree", "hooks", "commondir", "rebase-merge", "rebase-apply", "sequencer",
    "objects/info/alternates", "objects/info/http-alternates", "info/attributes", "info/grafts", "info/exclude",
    "info/sparse-checkout", "refs/replace", "remotes", "branches", "modules", "worktrees", "shallow",
)  # fmt: skip
