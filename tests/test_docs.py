"""The documentation: its site builds without a warning, and its snippets run."""

from __future__ import annotations

import contextlib
import io
import re
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import optax
import pytest

ROOT = Path(__file__).parents[1]
PAGES = sorted((ROOT / "docs").glob("*.md"))
SNIPPET = re.compile(r"(?<!-->\n)^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
"""Python, unless a comment ``<!-- not run: reason -->`` stands above it."""
WITH_SNIPPETS = [page for page in PAGES if SNIPPET.search(page.read_text())]


def names():
    """Names that snippets take for granted: a step, its arguments, and a frontier."""
    import jaxplan

    optimizer = optax.adam(1e-3)

    def loss(params, batch):
        query = batch["x"] @ params["block_0"]["query"]["kernel"]
        return jnp.mean((jnp.tanh(query) @ params["block_0"]["up"] @ params["embedding"] - batch["y"]) ** 2)

    def train_step(params, opt_state, batch):
        value, gradients = jax.value_and_grad(loss)(params, batch)
        updates, opt_state = optimizer.update(gradients, opt_state, params)
        return optax.apply_updates(params, updates), opt_state, value

    def shape(*dims):
        return jax.ShapeDtypeStruct(dims, jnp.float32)

    class Model:
        def init(self, key, x):
            width = x.shape[-1]
            return {
                "embedding": jnp.ones((2 * width, width)),
                "block_0": {"query": {"kernel": jnp.ones((width, width))}, "up": jnp.ones((width, 2 * width))},
            }

    def init(key):
        params = model.init(key, x)
        return params, optimizer.init(params)

    model, key, x = Model(), jax.random.key(0), jnp.ones((8, 1024))
    params, opt_state = jax.eval_shape(init, key)
    batch = {"x": shape(4096, 1024), "y": shape(4096, 1024)}
    return {
        "jax": jax, "jnp": jnp, "jaxplan": jaxplan, "optax": optax, "optimizer": optimizer, "train_step": train_step,
        "params": params, "opt_state": opt_state, "batch": batch, "in_shardings": (None, None, None),
        "model": model, "key": key, "x": x, "init": init,
        "frontier": jaxplan.plan(train_step, params, opt_state, batch, topology="h100:2x4"),
    }  # fmt: skip


@pytest.mark.parametrize("page", WITH_SNIPPETS, ids=lambda page: page.stem)
def test_the_snippets_of_a_page_run(page, tmp_path, monkeypatch):
    """One after the other, in one namespace."""
    monkeypatch.chdir(tmp_path)
    namespace = names()
    for code in SNIPPET.findall(page.read_text()):
        with contextlib.redirect_stdout(io.StringIO()):
            exec(compile(code, str(page), "exec"), namespace)


def test_the_site_builds_without_a_warning(tmp_path):
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "index.html").stat().st_size > 1000
    assert "jaxplan.plan" in (tmp_path / "api" / "index.html").read_text()


def test_every_page_is_in_the_navigation():
    nav = (ROOT / "mkdocs.yml").read_text()
    assert [page.name for page in PAGES if page.name not in nav] == []
