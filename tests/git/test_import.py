"""What the agent did in its own git directory arrives in the real repository, and the other way round."""

from __future__ import annotations

# proves GIT-03


def test_a_commit_arrives_with_branch_and_index(pair):
    pair.agent("echo more >>a; echo new >c; git add .; git commit -qm inside")
    inside = pair.agent("git rev-parse HEAD")

    result = pair.bring_back()

    assert [move[0] for move in result.moved] == ["refs/heads/main"]
    assert (result.refused, result.renamed, result.notes) == ([], [], [])
    assert pair.host("git rev-parse HEAD") == inside
    assert pair.host("git status --porcelain") == pair.agent("git status --porcelain") == ""
    pair.fsck()


def test_nothing_happens_twice(pair):
    pair.agent("git commit -q --allow-empty -m inside")
    pair.bring_back()
    before = pair.refs()

    result = pair.bring_back()

    assert (result.moved, result.followed, result.head) == ([], [], "")
    assert pair.refs() == before


def test_branches_tags_and_deletions_arrive(pair):
    pair.host("git branch old; git tag kept; git branch a")
    pair.set_up()
    pair.agent("git branch new/one; git tag v1; git tag -a -m annotated v2; git branch -D old; git tag -d kept")
    pair.agent("git branch -D a; git branch a/b")

    pair.bring_back()

    assert set(pair.refs()) == {
        "refs/heads/main", "refs/heads/new/one", "refs/heads/a/b", "refs/tags/v1", "refs/tags/v2", "refs/tags/kept",
    }  # fmt: skip
    pair.fsck()


def test_a_switch_arrives(pair):
    pair.agent("git switch -qc feature; echo x >x; git add x; git commit -qm x")

    result = pair.bring_back()

    assert result.head == "ref: refs/heads/feature"
    assert pair.host("git symbolic-ref HEAD").strip() == "refs/heads/feature"
    assert pair.host("git status --porcelain") == ""
    assert pair.host("git switch -q -; git symbolic-ref --short HEAD").strip() == "main"


def test_a_detached_head_arrives_with_its_commit(pair):
    pair.agent("git checkout -q --detach; git commit -q --allow-empty -m loose")
    inside = pair.agent("git rev-parse HEAD").strip()

    result = pair.bring_back()

    assert result.head == inside
    assert pair.host("cat .git/HEAD").strip() == inside
    assert set(pair.refs()) == {"refs/heads/main"}  # what carried it is gone
    pair.fsck()


def test_what_is_staged_arrives(pair):
    pair.agent(
        "echo staged >s; git add s; echo changed >a; git add a; git rm -q b; chmod +x s; git update-index --chmod=+x s"
    )

    pair.bring_back()

    assert pair.host("git status --porcelain") == pair.agent("git status --porcelain")
    assert pair.host("git show :s") == "staged\n"
    pair.fsck()


def test_staged_files_of_a_repository_without_commits_arrive(pair):
    pair.host("rm -rf .git; git init -q")
    pair.box.host("rm", "-rf", pair.private)
    pair.set_up()
    pair.agent("git add a")

    pair.bring_back()

    assert pair.host("git status --porcelain") == "A  a\n?? b\n"
    pair.agent("git commit -qm first")
    pair.bring_back()
    assert pair.host("git log --format=%s") == "first\n"


def test_an_amended_and_a_rebased_branch_arrive(pair):
    pair.agent("echo 1 >f; git add f; git commit -qm one")
    pair.bring_back()
    pair.agent("echo 2 >f; git add f; git commit -q --amend -m two")

    pair.bring_back()

    assert pair.host("git log --format=%s") == "two\nfirst\n"
    assert pair.host("git status --porcelain") == ""


def test_a_commit_of_the_host_shows_inside(pair):
    pair.host("echo host >a; git add a; git commit -qm host; git branch other; git tag t")

    result = pair.bring_back()

    assert sorted(move[0] for move in result.followed) == ["refs/heads/main", "refs/heads/other", "refs/tags/t"]
    assert pair.agent("git log --format=%s") == "host\nfirst\n"
    assert pair.agent("git status --porcelain") == ""


def test_a_switch_of_the_host_shows_inside(pair):
    pair.host("git switch -qc feature; echo host >c; git add c; git commit -qm host")

    pair.bring_back()

    assert pair.agent("git symbolic-ref HEAD").strip() == "refs/heads/feature"
    assert pair.agent("git status --porcelain") == ""


def test_a_branch_that_parted_arrives_under_another_name(pair):
    pair.host("echo host >h; git add h; git commit -qm host")
    pair.agent("echo inside >i; git add i; git commit -qm inside")
    host, inside = pair.host("git rev-parse HEAD").strip(), pair.agent("git rev-parse HEAD").strip()

    result = pair.bring_back("s7")

    assert result.renamed == [["refs/heads/main", "refs/heads/claudebox/s7/main"]]
    assert pair.refs()["refs/heads/main"] == host
    assert pair.refs()["refs/heads/claudebox/s7/main"] == inside
    assert pair.agent("git rev-parse main").strip() == inside
    # It goes on under that name, once; and when the user has merged it, both sides are one again.
    pair.bring_back("s8")
    assert "refs/heads/claudebox/s8/main" not in pair.refs()
    pair.host("rm i; git merge -q -m merged claudebox/s7/main")
    pair.bring_back("s7")
    assert pair.agent("git rev-parse main") == pair.host("git rev-parse main")
    assert pair.host("git status --porcelain") == pair.agent("git status --porcelain") == ""


def test_a_branch_of_another_worktree_stays_and_arrives_under_another_name(pair):
    pair.host("git branch held; git worktree add -q ../tree held")
    pair.set_up()
    pair.agent(
        "git commit-tree -m forged -p main main^{tree} >/tmp/id.$$; git update-ref refs/heads/held $(cat /tmp/id.$$)"
    )
    before = pair.host("git rev-parse held")

    result = pair.bring_back("s1")

    assert result.renamed == [["refs/heads/held", "refs/heads/claudebox/s1/held"]]
    assert pair.host("git rev-parse held") == before


def test_staged_on_both_sides_stays_with_the_host(pair):
    pair.bring_back()
    pair.host("echo host >a; git add a")
    pair.agent("echo inside >a; git add a; echo other >b; git add b")

    result = pair.bring_back()

    assert "staged on both sides" in " ".join(result.notes)
    assert pair.host("git show :a") == "host\n"
    assert pair.host("git show :b") == "other\n"


def test_a_rebase_under_way_inside_moves_no_head(pair):
    pair.agent(
        "git switch -qc topic; echo t >a; git commit -qam topic; git switch -q main; echo m >a; git commit -qam main"
    )
    pair.bring_back()
    pair.agent("git switch -q topic")
    pair.bring_back()
    pair.agent("git rebase main || true")

    result = pair.bring_back()

    assert "a rebase is under way inside" in " ".join(result.notes)
    assert pair.host("cat .git/HEAD") == "ref: refs/heads/topic\n"
    assert pair.host("ls .git").split().count("rebase-merge") == 0
    pair.agent("echo done >a; git add a; GIT_EDITOR=true git rebase --continue")
    pair.bring_back()
    assert pair.host("git log --format=%s") == "topic\nmain\nfirst\n"
    assert pair.host("git status --porcelain") == ""


def test_a_rebase_of_the_host_that_ended_inside_is_put_aside(pair):
    pair.host(
        "git switch -qc topic; echo t >a; git commit -qam topic; git switch -q main; echo m >a; git commit -qam main"
    )
    pair.host("git switch -q topic; git rebase main || true")
    pair.set_up()
    pair.host(f"cp -r .git/rebase-merge {pair.own}/; cp .git/REBASE_HEAD {pair.own}/")
    pair.bring_back()
    pair.agent("echo done >a; git add a; GIT_EDITOR=true git rebase --continue")

    result = pair.bring_back()

    assert "has ended inside" in " ".join(result.notes)
    assert pair.host("git status --porcelain=v2 --branch | head -2").split()[-1] == "topic"
    assert pair.host("git log --format=%s") == "topic\nmain\nfirst\n"
    assert "rebase" not in pair.host("ls .git")
