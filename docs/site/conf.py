"""The manual and the index of the API as one site, by Sphinx: CONTRIBUTING.md has the command.

Pages of the manual stay where they are; this folder holds what the site needs beside them. Nothing is fetched.
"""

import inspect
import pydoc
import re
import shutil
import sys
from pathlib import Path
from typing import Any

import octavo
import octavo.errors
from octavo.storage.arguments import _names
from sphinx.application import Sphinx

HERE = Path(__file__).resolve().parent

project = "Octavo"
copyright = "the Octavo authors, Apache-2.0"
version = release = octavo.__version__
extensions = ["sphinx.ext.autodoc", "sphinx.ext.napoleon", "myst_parser"]

# Sources are the whole repository, so that links between its pages hold; of it these are pages.
root_doc = "README"
include_patterns = ["*.md", "docs/*.md", "docs/lab/*.md", "docs/site/api/*.rst"]
myst_heading_anchors = 4  # pages link to headings as GitHub names them
suppress_warnings = ["myst.header"]  # a page may begin its sections at any level

html_theme = "furo"
html_title = f"Octavo {release}"
html_show_sourcelink = False
html_static_path = ["static"]
html_css_files = ["site.css"]
pygments_style, pygments_dark_style = "friendly", "github-dark"
toc_object_entries_show_parents = "hide"

napoleon_numpy_docstring = False
napoleon_use_rtype = False
napoleon_use_ivar = True
autodoc_member_order = "bysource"
autodoc_preserve_defaults = True
autodoc_type_aliases = {name: f"numpy.typing.{name}" for name in ("ArrayLike", "DTypeLike", "NDArray")}
maximum_signature_line_length = 120
add_module_names = False
python_use_unqualified_type_names = True

nitpicky = True
nitpick_ignore_regex = [  # classes of other packages and private names, which have no page here
    ("py:.*", r"(torch|numpy|np|collections|pathlib|os|rich|typing|transformers)\..*"),
    ("py:.*", r"octavo\.(\w+\.)*_\w+.*"),
    ("py:.*", r"Tensor|NDArray|ArrayLike|DTypeLike|TypeAliasForwardRef"),
    ("py:class", r"Special|Texts|Site|GraphContent"),  # names of annotations alone
]

_LINK = re.compile(r"(?<!!)\[([^\]]*)\]\(([^)#:\s]+)(?:#[^)\s]*)?\)")
_PLACES: dict[int, str] = {}
_TWICE = {id(getattr(octavo, name)) for name in octavo.__all__}


def pages(app: Sphinx, folder: str) -> list[str]:
    """The pages of a folder in the order in which its README names them, then those that it does not name."""
    links = _LINK.findall(Path(app.srcdir, folder, "README.md").read_text(encoding="utf-8"))
    named = [f"{folder}/{target.removesuffix('.md')}" for _, target in links if "/" not in target]
    found = sorted(page for page in app.env.found_docs if str(Path(page).parent) == folder)
    return list(dict.fromkeys(page for page in (*named, *found) if page in found and not page.endswith("/README")))


def with_contents(app: Sphinx, docname: str, source: list[str]) -> None:
    """Put the table of contents behind the README, which is the first page and has none on GitHub."""
    if docname == root_doc:
        contents = (HERE / "contents.txt").read_text(encoding="utf-8")
        for folder in ("docs", "docs/lab"):
            contents = contents.replace(f"{folder}/*\n", "".join(f"{page}\n" for page in pages(app, folder)))
        source[0] += contents


def without_links_to_folders(app: Sphinx, docname: str, source: list[str]) -> None:
    """Keep the text alone of links to folders and to pages of the repository that are not of this site."""

    def text_or_link(link: re.Match[str]) -> str:
        target = Path(app.srcdir, docname).parent / link[2]
        is_page = app.env.path2doc(target.resolve()) in app.env.found_docs
        return link[1] if target.is_dir() or (target.suffix == ".md" and not is_page) else link[0]

    if app.env.doc2path(docname).suffix == ".md":
        source[0] = _LINK.sub(text_or_link, source[0])


def without_second_places(app: Sphinx, kind: str, name: str, thing: object, skip: bool, options: Any) -> bool | None:
    """Leave names of ``octavo`` out of the rooms that they come from, and errors out of all but ``octavo.errors``."""
    module = app.env.current_document.autodoc_module
    is_error = isinstance(thing, type) and issubclass(thing, octavo.errors.OctavoError | octavo.OctavoWarning)
    if kind != "module" or module == "octavo.errors":
        return None
    return True if is_error or id(thing) in _TWICE else None


def with_names_of_checkers(app: Sphinx, thing: Any, bound: bool) -> None:
    """Import the names that a module imports for type checkers alone, so that annotations with them can be read."""
    module = sys.modules.get(getattr(thing, "__module__", None) or "")
    if module is not None and module.__name__.startswith("octavo."):
        vars(module).update(
            {name: value for name, value in _names(module.__name__).items() if name not in vars(module)}
        )


def with_plain_types(
    app: Sphinx, kind: str, name: str, thing: object, options: Any, signature: str | None, returned: str | None
) -> tuple[str | None, str | None]:
    """Write the type variable of :func:`octavo.quantize` as the types that it stands for."""
    plain = "torch.Tensor | numpy.ndarray"
    return tuple(text and re.sub(r"~?(octavo\.ops\.codec\.)?_Values", plain, text) for text in (signature, returned))


def with_linked_map(app: Sphinx, kind: str, name: str, thing: object, options: Any, lines: list[str]) -> None:
    """Make links of the names in the package's table by task."""
    if (kind, name) != ("module", "octavo"):
        return

    def link(word: re.Match[str]) -> str:
        full = f"octavo.{word[0]}" if hasattr(octavo, word[0]) else f"octavo.{room}.{word[0]}"
        return f":py:obj:`{word[0]} <{full}>`"

    first, last = (place for place, line in enumerate(lines) if line.startswith("="))
    for place in range(first + 1, last):
        task, names = lines[place][:24], lines[place][24:]
        room = names.partition(" (")[0]
        lines[place] = task + re.sub(r"\w+", link, names)


def with_linked_formats(app: Sphinx, kind: str, name: str, thing: object, options: Any, lines: list[str]) -> None:
    """Make FORMATS.md, which docstrings name as their source, a link."""
    lines[:] = [re.sub(r"(?<![\w`/])FORMATS\.md(?![\w`])", ":doc:`FORMATS.md </FORMATS>`", line) for line in lines]


def as_prose(app: Sphinx, kind: str, name: str, thing: object, options: Any, lines: list[str]) -> None:
    """Undo what napoleon makes of a property's ``Bits per element: ...``: a type and its description."""
    if isinstance(thing, property):
        lines[:] = inspect.cleandoc(thing.__doc__ or "").splitlines()


def where_it_is(app: Sphinx, env: Any, node: Any, text: Any) -> Any:
    """Find a name that is described under another one, by the object; one that is there without a page is no link."""
    if node.get("refdomain") != "py":
        return None
    domain = env.get_domain("py")
    if not _PLACES:
        named = (
            name for name, place in domain.objects.items() if place.objtype not in ("attribute", "data", "property")
        )
        _PLACES.update({id(thing): name for name in named if (thing := pydoc.locate(name)) is not None})
    module, of_class = node.get("py:module"), node.get("py:class")
    for scope in ((module, of_class), (module,), ()):
        thing = pydoc.locate(".".join([*filter(None, scope), node["reftarget"]]))
        if id(thing) in _PLACES:
            name = _PLACES[id(thing)]
            return domain.resolve_xref(env, node["refdoc"], app.builder, node["reftype"], name, node, text)
        if thing is not None:
            return text
    return None


def with_index(app: Sphinx, error: Exception | None) -> None:
    """Give the first page the name that servers look for."""
    if error is None:
        shutil.copy(Path(app.outdir, f"{root_doc}.html"), Path(app.outdir, "index.html"))


def setup(app: Sphinx) -> dict[str, Any]:
    """Register what is above."""
    app.connect("source-read", without_links_to_folders)
    app.connect("source-read", with_contents)
    app.connect("missing-reference", where_it_is)
    app.connect("autodoc-skip-member", without_second_places)
    app.connect("autodoc-before-process-signature", with_names_of_checkers)
    app.connect("autodoc-process-signature", with_plain_types)
    app.connect("autodoc-process-docstring", with_linked_map)
    app.connect("autodoc-process-docstring", with_linked_formats, priority=700)
    app.connect("autodoc-process-docstring", as_prose, priority=600)  # napoleon has 500
    app.connect("build-finished", with_index)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
