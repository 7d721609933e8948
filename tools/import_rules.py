"""One more kind of contract for import-linter: the complete list of what a room may import."""

from __future__ import annotations

import sys
from typing import cast

from grimp import ImportGraph
from importlinter import Contract, ContractCheck, fields, output


class OnlyContract(Contract):
    """`room` imports directly nothing but itself, the standard library, and what is listed here.

    `may_import` lists packages with everything inside them, `public_face_of` packages of which only their own names are taken, no
    module inside. import-linter's own "forbidden" lists what is unwanted, and the next library or the next room would be missing
    there. With `as_package = false` the room is the module alone, without those inside it. A room that does not exist yet imports
    nothing.
    """

    type_name = "only"

    room = fields.StringField()
    may_import = fields.ListField(subfield=fields.StringField())
    public_face_of = fields.ListField(subfield=fields.StringField(), required=False, default=[])
    as_package = fields.BooleanField(required=False, default=True)

    def check(self, graph: ImportGraph, verbose: bool) -> ContractCheck:  # noqa: ARG002  (the signature is import-linter's)
        # The attributes are fields where they are declared and plain values here, hence the casts.
        room, packages, faces = cast(str, self.room), set(cast(list[str], self.may_import)), set(cast(list[str], self.public_face_of))
        modules = {room} & graph.modules
        if cast(bool, self.as_package):
            modules |= {module for module in graph.modules if _is_inside(module, room)}
            packages |= {room}
        unwanted = [
            f"{importer} imports {imported}"
            for importer in sorted(modules)
            for imported in sorted(graph.find_modules_directly_imported_by(importer))
            if imported not in packages | faces
            and not any(_is_inside(imported, package) for package in packages)
            and imported.partition(".")[0] not in sys.stdlib_module_names
        ]
        return ContractCheck(kept=not unwanted, metadata={"unwanted": unwanted})

    def render_broken_contract(self, check: ContractCheck) -> None:
        for sentence in check.metadata["unwanted"]:
            output.print_error(sentence)
        allowed = [*cast(list[str], self.may_import), *cast(list[str], self.public_face_of)]
        output.print(f"{self.room} may import: {', '.join(allowed) or 'nothing'}.")


def _is_inside(module: str, package: str) -> bool:
    return module.startswith(f"{package}.")
