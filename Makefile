# make demo     train the default comparison and print its table and page
# make test     run the tests
# make test-real  the tests on trained models, which it downloads
# make lint     style, types; what CI adds to the tests
# make picture  the README's picture, from the demonstration
# Each sets up .venv by itself; the second time it starts at once.

PYTHON ?= python3
# Modules are compiled when they are first imported: most of torch never is.
PIP = .venv/bin/python -m pip install --quiet --no-compile --disable-pip-version-check \
	--constraint constraints.txt

.PHONY: help demo test test-real lint picture clean

help:
	@sed -n 's/^# make/make/p' Makefile

demo: .venv/demo
	.venv/bin/normwise compare --out runs/demo

test: .venv/test
	.venv/bin/python -m pytest --numprocesses 2 --quiet

test-real: .venv/test
	.venv/bin/python -m pytest -m real --quiet tests/real

lint: .venv/dev
	.venv/bin/ruff check
	.venv/bin/ruff format --check
	.venv/bin/mypy

picture: .venv/test
	.venv/bin/normwise compare --out runs/demo
	.venv/bin/python -m tests.page_picture runs/demo

clean:
	rm -rf .venv

.venv/python:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "normwise needs Python 3.11 or newer; try make PYTHON=python3.11")'
	$(PYTHON) -m venv .venv
	touch $@

.venv/demo: .venv/python pyproject.toml constraints.txt
	$(PIP) --editable '.[lab]'
	touch $@

.venv/test: .venv/python pyproject.toml constraints.txt
	$(PIP) --editable '.[test]'
	touch $@

.venv/dev: .venv/python pyproject.toml constraints.txt
	$(PIP) --editable '.[dev]'
	touch $@
