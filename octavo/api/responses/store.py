"""Stored responses: in memory, limited in number and size, separate for each client.

A conversation is a chain of turns; a turn is kept while a response in the store builds on it. Everything is kept as
JSON, whose length is what counts.
"""

import re
import secrets
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import msgspec

from octavo.api.errors import HttpError
from octavo.api.responses.background import BackgroundResponse
from octavo.api.responses.items import Item
from octavo.api.responses.objects import ResponseObject
from octavo.errors import InvalidRequestError

MAX_RECALLED_BYTES = 16 << 20
"""Of what is kept, so much may one request build on: all of it is read again."""
_OWN_ID = re.compile(r"resp_([0-9a-f]{8})[0-9a-f]{24}")


@dataclass(eq=False, slots=True)
class StoredTurn:
    """What one response added to its conversation.

    Attributes:
        outputs: the answer's.
        parent: the turn before.
        num_users: responses and turns that build on it.
    """

    inputs: bytes
    outputs: bytes
    parent: "StoredTurn | None"
    owner: str
    item_ids: list[str]
    num_users: int = 0

    @property
    def num_bytes(self) -> int:
        """What it takes, roughly."""
        return len(self.inputs) + len(self.outputs) + 100 * len(self.item_ids)

    def chain(self) -> "list[StoredTurn]":
        """The conversation up to this turn, oldest first."""
        turns: list[StoredTurn] = []
        turn: StoredTurn | None = self
        while turn is not None:
            turns.append(turn)
            turn = turn.parent
        return turns[::-1]

    def num_bytes_of_chain(self) -> int:
        """What the conversation up to and with this turn takes, roughly."""
        return sum(turn.num_bytes for turn in self.chain())

    def items(self) -> list[Item]:
        """Inputs and outputs of the conversation up to and with this turn."""
        return [item for turn in self.chain() for data in (turn.inputs, turn.outputs) for item in _decode(data)]

    def all_inputs(self) -> list[Item]:
        """What the model read for this turn: the conversation before it, and the request's own items."""
        before = self.parent.items() if self.parent is not None else []
        return before + _decode(self.inputs)


def _decode(data: bytes) -> list[Item]:
    return msgspec.json.decode(data, type=list[Item])


@dataclass(eq=False, slots=True)
class StoredResponse:
    """A response that can be retrieved.

    Attributes:
        body: the response as JSON, once it has ended.
        turn: None until the response has ended.
        num_bytes: what it takes without its turn, from then on.
        inputs: what the model reads, until then.
    """

    body: bytes
    turn: StoredTurn | None
    background: BackgroundResponse | None = None
    num_bytes: int = 0
    inputs: list[Item] = field(default_factory=list)

    @property
    def is_running(self) -> bool:
        """Whether more of it will come."""
        return self.turn is None

    def as_json(self) -> bytes:
        """The response as JSON, as far as it is."""
        if self.turn is None and self.background is not None and self.background.snapshot is not None:
            return msgspec.json.encode(self.background.snapshot())
        return self.body


Key = tuple[str, str]


@dataclass
class ResponseStore:
    """Responses by client and id; the oldest go when there are too many or they are too large.

    Attributes:
        max_count: most responses; with 0 none are kept.
        max_bytes: most bytes of those that have ended.
        num_processes: API processes of this server, each with a store of its own.
        num_bytes: what is kept.
    """

    max_count: int
    max_bytes: int
    num_processes: int = 1
    num_bytes: int = 0
    _entries: dict[Key, StoredResponse] = field(default_factory=dict)
    _turn_of_item: dict[Key, StoredTurn] = field(default_factory=dict)
    _tag: str = field(default_factory=lambda: secrets.token_hex(4))

    def new_id(self) -> str:
        """A new id, which contains the process's tag."""
        return f"resp_{self._tag}{secrets.token_hex(12)}"

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, key: Key) -> bool:
        return key in self._entries

    def get(self, owner: str, response_id: str, param: str | None = None) -> StoredResponse:
        """The response of that id.

        Args:
            owner: the request's API key.
            param: where the id appears in the request.

        Raises:
            HttpError: 404; the sentence says what may have become of it.
        """
        entry = self._entries.get((owner, response_id))
        if entry is not None:
            return entry
        name = repr(response_id[:80])
        made = _OWN_ID.fullmatch(response_id)
        if not self.max_count:
            reason = "this server stores no responses."
        elif made is None or made[1] == self._tag:
            reason = "it was never made, was deleted, was not to be stored, or had to make room for newer ones."
        elif self.num_processes > 1:
            reason = (
                f"another of the server's {self.num_processes} API processes made it, and each keeps its own; ask "
                "over the connection that it came from, or have the operator run one API process."
            )
        else:
            reason = "it was made before the server was started, and responses are kept in memory."
        raise HttpError(404, f"Response with id {name} not found: {reason}", param)

    def recall(self, owner: str, item_ids: Iterable[str]) -> dict[str, Item]:
        """The items of those ids, as far as they are kept."""
        wanted = set(item_ids)
        turns = {turn: None for item_id in wanted if (turn := self._turn_of_item.get((owner, item_id))) is not None}
        if sum(turn.num_bytes for turn in turns) > MAX_RECALLED_BYTES:
            raise InvalidRequestError(
                f"input: the items that it refers to are parts of more than {MAX_RECALLED_BYTES} bytes; send them "
                "themselves.",
                "input",
            )
        items = (item for turn in turns for data in (turn.inputs, turn.outputs) for item in _decode(data))
        return {item["id"]: item for item in items if item["id"] in wanted}

    def begin_response(
        self, owner: str, response: ResponseObject, background: BackgroundResponse, inputs: list[Item]
    ) -> StoredResponse:
        """Keep a response that is being made."""
        entry = StoredResponse(b"", None, background, inputs=inputs)
        self._entries[owner, response.id] = entry
        self._make_room()
        return entry

    def finish_response(
        self,
        owner: str,
        response: ResponseObject,
        inputs: Sequence[Item],
        outputs: Sequence[Item],
        parent: StoredTurn | None,
    ) -> None:
        """Keep a response that has ended, with its conversation."""
        if not self.max_count:
            return
        key = (owner, response.id)
        entry = self._entries.get(key)
        if entry is None:
            if response.background:
                return  # it has been deleted
            entry = self._entries[key] = StoredResponse(b"", None)
        ids = [str(item["id"]) for item in (*inputs, *outputs) if item.get("id")]
        turn = StoredTurn(msgspec.json.encode(list(inputs)), msgspec.json.encode(list(outputs)), parent, owner, ids)
        entry.body = msgspec.json.encode(response)
        entry.turn = turn
        entry.inputs = []
        self._use(turn)
        entry.num_bytes = len(entry.body) + (entry.background.log.num_bytes if entry.background is not None else 0)
        self.num_bytes += entry.num_bytes
        self._make_room()

    def delete(self, owner: str, response_id: str) -> StoredResponse:
        """Delete a response; conversations that build on it keep its items."""
        entry = self.get(owner, response_id)
        self._remove((owner, response_id))
        return entry

    def running(self) -> list[StoredResponse]:
        """Those that are being made."""
        return [entry for entry in self._entries.values() if entry.is_running]

    def _use(self, turn: StoredTurn | None) -> None:
        # An unused turn may have been released; it is added again.
        while turn is not None:
            turn.num_users += 1
            if turn.num_users > 1:
                return
            self.num_bytes += turn.num_bytes
            for item_id in turn.item_ids:
                self._turn_of_item[turn.owner, item_id] = turn
            turn = turn.parent

    def _release(self, turn: StoredTurn | None) -> None:
        while turn is not None:
            turn.num_users -= 1
            if turn.num_users > 0:
                return
            self.num_bytes -= turn.num_bytes
            for item_id in turn.item_ids:
                if self._turn_of_item.get((turn.owner, item_id)) is turn:
                    del self._turn_of_item[turn.owner, item_id]
            turn = turn.parent

    def _remove(self, key: Key) -> None:
        entry = self._entries.pop(key)
        if entry.turn is not None:
            self.num_bytes -= entry.num_bytes
            self._release(entry.turn)

    def _make_room(self) -> None:
        if len(self._entries) <= self.max_count and self.num_bytes <= self.max_bytes:
            return
        for key in [key for key, entry in self._entries.items() if not entry.is_running]:
            if len(self._entries) <= self.max_count and self.num_bytes <= self.max_bytes:
                return
            self._remove(key)
