r"""Kernel: verify the signatures of the frames in a receive buffer, and look up grants.

``gate`` writes a row for each whole frame from ``position`` on (``gate_words``), up to ``rows_max``
or an invalid length. It changes nothing else: the caller decides what becomes of a frame.

**What it reads**; all else is ODD:

* A JSON header in the form that clients write: no space between tokens, no repeated or unknown key,
  no remark. Or a binary header without a remark, whose sizes fit exactly.
* Flag 0 or one-way: replies are not requests.
* At most FIELDS_MAX fields, whose names are plain ASCII, each once: so every reader of the header
  finds the same fields. Values are any text in UTF-8; in JSON with any escapes, but whole
  surrogate pairs.
* No field ``_UNIQUE_KEY_QUERY``, which some clients do not sign.

The signed content is that of ``reput.format.signing``: all values but the signature in the order of
their names, then the body.

Lengths of the buffer are compared with the end of what holds them before they are used, and no byte
outside of the frames is read. The signature is compared in a time that does not depend on it.
"""

# mypy: allow-untyped-defs, allow-untyped-calls, allow-untyped-decorators, no-check-untyped-defs

from numba import njit

from reput.broker.kernels import gate_words as words
from reput.format import command, signing
from reput.format.command import Serialization
from reput.format.kernels.hashes import is_utf8, same_bytes
from reput.format.kernels.header_readers import json_reader, read_binary_head
from reput.format.kernels.json_tokens import (
    CLOSE,
    COMMA,
    OPEN,
    QUOTE_COLON,
    text_end,
)
from reput.format.kernels.memory import (
    COMPILE_OPTIONS,
    copy,
    get_i64,
    get_u8,
    get_u16,
    get_u32,
    json_run,
    load_i16,
    load_i32,
    load_i64,
    put_i32,
    put_u8,
    sha1_blocks,
    sha1_blocks_sha,
    store_i32,
    store_i64,
)
from reput.format.kernels.plain_text import (
    BACKSLASH,
    QUOTE,
    SPACE,
    is_plain_text,
)

JSON = int(Serialization.JSON)
BINARY = int(Serialization.ROCKETMQ)
LENGTH_BYTES = command.LENGTH.size
FRAME_MIN = command.MARK.size
FRAME_MAX = command.FRAME_BYTES_MAX
HEADER_MASK = 0xFFFFFF
ONEWAY = command.IS_ONEWAY
BLOCK = 64
BLOCK_BITS = 6
LENGTH_AT = BLOCK - 8
DIGEST_BYTES = 20
WORD_BITS = 64
START_A, START_B, START_C, START_D, START_E = (
    0x67452301,
    0xEFCDAB89,
    0x98BADCFE,
    0x10325476,
    0xC3D2E1F0,
)
"""Hash of no bytes."""
HASH_FACTOR = -0x61C8864680B583EB
HASH_SHIFT = 29


def name_key(name: bytes) -> int:
    """Return the first eight bytes of a name as a number that sorts like the bytes."""
    return int.from_bytes(name[:8].ljust(8, b"\0"), "big", signed=True)


ACCESS_KEY = name_key(signing.ACCESS_KEY.encode())
ACCESS_KEY_SIZE = len(signing.ACCESS_KEY)
ACCESS_KEY_END = signing.ACCESS_KEY.encode()[-1]
SIGNATURE = name_key(signing.SIGNATURE.encode())
SIGNATURE_SIZE = len(signing.SIGNATURE)
SIGNATURE_END = signing.SIGNATURE.encode()[-1]
UNIQUE_KEY = name_key(signing.UNIQUE_KEY_QUERY.encode())
assert ACCESS_KEY_SIZE == 9, "the name is compared by its first eight bytes and its last one"
assert SIGNATURE_SIZE == 9, "the name is compared by its first eight bytes and its last one"
assert signing.SIGNATURE_BYTES == words.SIGNATURE_BYTES

LETTER_U = ord("u")
LETTER_B, BACKSPACE = ord("b"), 8
LETTER_F, FORM_FEED = ord("f"), 12
LETTER_N, LINE_FEED = ord("n"), 10
LETTER_R, RETURN = ord("r"), 13
LETTER_T, TAB = ord("t"), 9
SLASH = ord("/")


# --- escapes of JSON ---------------------------------------------------------


@njit(**COMPILE_OPTIONS)
def hex_value(address):
    """Return the value of four hexadecimal digits; -1 if they are none."""
    value = 0
    for i in range(4):
        byte = get_u8(address + i)
        if 48 <= byte <= 57:
            digit = byte - 48
        elif 97 <= byte <= 102:
            digit = byte - 87
        elif 65 <= byte <= 70:
            digit = byte - 55
        else:
            return -1
        value = value << 4 | digit
    return value


@njit(**COMPILE_OPTIONS)
def put_character(target, point):
    """Write a character in UTF-8; return its end."""
    if point < 0x80:
        put_u8(target, point)
        return target + 1
    if point < 0x800:
        put_u8(target, 0xC0 | point >> 6)
        put_u8(target + 1, 0x80 | point & 0x3F)
        return target + 2
    if point < 0x10000:
        put_u8(target, 0xE0 | point >> 12)
        put_u8(target + 1, 0x80 | point >> 6 & 0x3F)
        put_u8(target + 2, 0x80 | point & 0x3F)
        return target + 3
    put_u8(target, 0xF0 | point >> 18)
    put_u8(target + 1, 0x80 | point >> 12 & 0x3F)
    put_u8(target + 2, 0x80 | point >> 6 & 0x3F)
    put_u8(target + 3, 0x80 | point & 0x3F)
    return target + 4


@njit(**COMPILE_OPTIONS)
def simple_escape(byte):
    """Return what a letter after a backslash means; -1 if nothing."""
    if byte in (QUOTE, BACKSLASH, SLASH):
        return byte
    if byte == LETTER_N:
        return LINE_FEED
    if byte == LETTER_R:
        return RETURN
    if byte == LETTER_T:
        return TAB
    if byte == LETTER_B:
        return BACKSPACE
    return FORM_FEED if byte == LETTER_F else -1


@njit(**COMPILE_OPTIONS)
def read_escape(address, limit, target):
    """Write the character of the escape at an address; return both ends, 0, 0 if it is odd."""
    if limit - address < 2:
        return 0, 0
    byte = get_u8(address + 1)
    if byte != LETTER_U:
        value = simple_escape(byte)
        if value < 0:
            return 0, 0
        put_u8(target, value)
        return address + 2, target + 1
    if limit - address < 6:
        return 0, 0
    point = hex_value(address + 2)
    if point < 0:
        return 0, 0
    address += 6
    if 0xD800 <= point <= 0xDFFF:
        if point >= 0xDC00 or limit - address < 6 or get_u8(address) != BACKSLASH:
            return 0, 0
        low = hex_value(address + 2)
        if get_u8(address + 1) != LETTER_U or low < 0xDC00 or low > 0xDFFF:
            return 0, 0
        point = 0x10000 + (point - 0xD800 << 10) + (low - 0xDC00)
        address += 6
    return address, put_character(target, point)


@njit(**COMPILE_OPTIONS)
def unescape(address, limit, target):
    """Write the text of a JSON string up to its quote.

    Return the address of the quote and the end of what was written; 0, 0 if the text is odd. It is
    never longer than its form in JSON.
    """
    start = target
    while address < limit:
        if limit - address >= 16:
            run = json_run(address)
            copy(target, address, 16)
            address += run
            target += run
            if run == 16:
                continue
        byte = get_u8(address)
        if byte == QUOTE:
            return (address, target) if is_utf8(start, target - start) else (0, 0)
        if byte == BACKSLASH:
            address, target = read_escape(address, limit, target)
            if address == 0:
                return 0, 0
        elif byte < SPACE:
            return 0, 0
        else:
            put_u8(target, byte)
            address += 1
            target += 1
    return 0, 0


# --- fields --------------------------------------------------------------------


@njit(**COMPILE_OPTIONS)
def key_of(address, size, limit):
    """Return the first eight bytes of a name, as ``name_key``. Bytes up to ``limit`` are read."""
    if size >= 8:
        return load_i64(address)
    if limit - address >= 8:
        return load_i64(address) & -1 << WORD_BITS - 8 * size
    key = 0
    for i in range(size):
        key = key << 8 | get_u8(address + i)
    return key << WORD_BITS - 8 * size


@njit(**COMPILE_OPTIONS)
def compare_ends(entry, other):
    """Return how two names that begin with the same eight bytes compare: -1, 0 or 1."""
    a, a_size = entry.name, entry.name_size
    b, b_size = other.name, other.name_size
    for i in range(8, min(a_size, b_size)):
        difference = get_u8(a + i) - get_u8(b + i)
        if difference != 0:
            return -1 if difference < 0 else 1
    if a_size == b_size:
        return 0
    return -1 if a_size < b_size else 1


@njit(**COMPILE_OPTIONS)
def add_field(block, name, name_size, value, value_size, limit):
    """Add a field in the order of the names; return False if it is odd."""
    count = block.field_count
    if name_size == 0 or count == words.FIELDS_MAX:
        return False
    entry = block.fields[count]
    entry.name = name
    entry.name_size = name_size
    entry.value = value
    entry.value_size = value_size
    key = key_of(name, name_size, limit)
    if key == UNIQUE_KEY:
        return False
    keys = block.keys
    order = block.order
    place = count
    while place > 0:
        before = keys[place - 1]
        if before < key:
            break
        if before == key:
            comparison = compare_ends(entry, order[place - 1])
            if comparison == 0:
                return False
            if comparison > 0:
                break
        keys[place] = before
        order[place] = order[place - 1]
        place -= 1
    keys[place] = key
    order[place] = entry
    block.field_count = count + 1
    return True


@njit(**COMPILE_OPTIONS)
def find_field(block, key, name, size):
    """Return the entry of a field; 0 if the frame lacks it. ``key`` is that of its name."""
    for i in range(block.field_count):
        if block.keys[i] == key:
            entry = block.order[i]
            if entry.name_size == size and same_bytes(entry.name, name, size):
                return entry
    return 0


@njit(**COMPILE_OPTIONS)
def find_nine(block, key, last):
    """Return the entry of a field by its first eight bytes and its ninth, the last one; else 0."""
    for i in range(block.field_count):
        if block.keys[i] == key:
            entry = block.order[i]
            if (
                entry.name_size == SIGNATURE_SIZE
                and get_u8(entry.name + SIGNATURE_SIZE - 1) == last
            ):
                return entry
    return 0


# --- headers -------------------------------------------------------------------


@njit(**COMPILE_OPTIONS)
def read_fields(block, address, limit):
    """Read the object of ``extFields``; return its end, 0 if it is odd."""
    if limit - address < 2 or get_u8(address) != OPEN:
        return 0
    if get_u8(address + 1) == CLOSE:
        return address + 2
    while True:
        # At the byte before a name: the brace, or a comma.
        if limit - address < 8 or get_u8(address + 1) != QUOTE:
            return 0
        name = address + 2
        name_end = text_end(name, limit)
        if name_end == 0 or limit - name_end < 4 or get_u16(name_end) != QUOTE_COLON:
            return 0
        if get_u8(name_end + 2) != QUOTE:
            return 0
        value = name_end + 3
        value_end = text_end(value, limit)
        size = value_end - value
        if value_end == 0:
            text = block.texts_end
            value_end, end = unescape(value, limit, text)
            if value_end == 0:
                return 0
            block.texts_end = end
            value = text
            size = end - text
        if not add_field(block, name, name_end - name, value, size, limit):
            return 0
        address = value_end + 1
        if address >= limit:
            return 0
        mark = get_u8(address)
        if mark == CLOSE:
            return address + 1
        if mark != COMMA:
            return 0


read_json = json_reader(read_fields)


@njit(**COMPILE_OPTIONS)
def read_binary(block, address, limit):
    """Read a binary header; return False if it is odd."""
    address = read_binary_head(block, address, limit)
    if address == 0:
        return False
    while address < limit:
        if limit - address < 2:
            return False
        name_size = load_i16(address)
        name = address + 2
        if name_size <= 0 or limit - name < name_size + 4:
            return False
        value = name + name_size + 4
        value_size = load_i32(value - 4)
        if value_size < 0 or limit - value < value_size:
            return False
        address = value + value_size
        if not is_plain_text(name, name + name_size, limit) or not is_utf8(value, value_size):
            return False
        # An empty value means that the field is absent.
        if value_size > 0 and not add_field(block, name, name_size, value, value_size, limit):
            return False
    return True


@njit(**COMPILE_OPTIONS)
def read_header(block, address, end):
    """Read the header of a frame; return the address of its body, 0 if the frame is odd."""
    mark = load_i32(address)
    size = mark & HEADER_MASK
    serialization = mark >> 24 & 0xFF
    block.field_count = 0
    block.texts_end = block.scratch
    if size > words.HEADER_BYTES_MAX or size > end - address - FRAME_MIN:
        return 0
    body = address + FRAME_MIN + size
    if serialization == JSON:
        is_read = read_json(block, address + FRAME_MIN, body)
    elif serialization == BINARY:
        is_read = read_binary(block, address + FRAME_MIN, body)
    else:
        return 0
    flag = block.frame_flag
    return body if is_read and (flag == 0 or flag == ONEWAY) else 0


# --- tables --------------------------------------------------------------------


@njit(**COMPILE_OPTIONS)
def hash_number(value, more):
    """Continue a hash with a number."""
    value = (value ^ more) * HASH_FACTOR
    return value ^ value >> HASH_SHIFT


@njit(**COMPILE_OPTIONS)
def hash_text(value, address, size):
    """Continue a hash with a text."""
    i = 0
    while i + 8 <= size:
        value = hash_number(value, get_i64(address + i))
        i += 8
    rest = size
    while i < size:
        rest = rest << 8 ^ get_u8(address + i)
        i += 1
    return hash_number(value, rest)


@njit(**COMPILE_OPTIONS)
def account_slot(block, name, size):
    """Return the slot of an account, or the one that is free for it; -1 if there is none."""
    mask = block.account_slots - 1
    epoch = block.epoch
    slot = hash_text(block.seed, name, size) & mask
    for _ in range(words.PROBES_MAX):
        row = block.accounts[slot]
        if row.epoch != epoch:
            return slot
        if row.name_size == size and same_bytes(row.name, name, size):
            return slot
        slot = (slot + 1) & mask
    return -1


@njit(**COMPILE_OPTIONS)
def grant_slot(block, account, code, topic, topic_size, group, group_size):
    """Return the slot of a grant, or the one that is free for it; -1 if there is none."""
    mask = block.grant_slots - 1
    epoch = block.epoch
    peer = block.peer
    value = hash_number(block.seed, peer << 32 ^ account << 16 ^ code)
    value = hash_text(hash_text(value, topic, topic_size), group, group_size)
    slot = value & mask
    for _ in range(words.PROBES_MAX):
        row = block.grants[slot]
        if row.epoch != epoch:
            return slot
        if (
            row.peer == peer
            and row.account == account
            and row.code == code
            and row.topic_size == topic_size
            and row.group_size == group_size
            and same_bytes(row.topic, topic, topic_size)
            and same_bytes(row.group, group, group_size)
        ):
            return slot
        slot = (slot + 1) & mask
    return -1


@njit(**COMPILE_OPTIONS)
def is_granted(block, account):
    """Return whether the table has a grant for the frame that was read."""
    code = block.frame_code
    for i in range(block.code_count):
        row = block.codes[i]
        if row.number != code:
            continue
        name, size = row.topic, row.topic_size
        topic = find_field(block, key_of(name, size, name + size), name, size)
        if topic == 0 or topic.value_size == 0:
            return False
        group, group_size = 0, 0
        name, size = row.group, row.group_size
        if size > 0:
            entry = find_field(block, key_of(name, size, name + size), name, size)
            if entry == 0 or entry.value_size == 0:
                return False
            group = entry.value
            group_size = entry.value_size
        slot = grant_slot(
            block,
            account,
            code,
            topic.value,
            topic.value_size,
            group,
            group_size,
        )
        if slot < 0:
            return False
        grant = block.grants[slot]
        return grant.epoch == block.epoch
    return False


# --- HMAC ----------------------------------------------------------------------


@njit(**COMPILE_OPTIONS)
def hash_blocks(block, address, count):
    """Continue the hash over whole blocks."""
    state = block.hash.address
    if block.has_sha != 0:
        sha1_blocks_sha(state, address, count)
    else:
        sha1_blocks(state, address, count)


@njit(**COMPILE_OPTIONS)
def begin_hash(block, digest):
    """Set the hash to that of an account's first block."""
    for i in range(words.DIGEST_WORDS):
        block.hash[i] = digest[i]


@njit(**COMPILE_OPTIONS)
def finish_hash(block, address, size, total):
    """Hash the last bytes, less than a block, whose padding is written after them."""
    end = address + size
    put_u8(end, 0x80)
    last = address + LENGTH_AT if size < LENGTH_AT else address + BLOCK + LENGTH_AT
    end += 1
    while end < last:
        put_u8(end, 0)
        end += 1
    store_i64(last, total * 8)
    hash_blocks(block, address, (last + 8 - address) >> BLOCK_BITS)


@njit(**COMPILE_OPTIONS)
def hash_content(block, signature, body, body_size):
    """Hash all values but the signature, then the body."""
    content = block.scratch + words.HEADER_BYTES_MAX + words.SLACK
    size = 0
    for i in range(block.field_count):
        entry = block.order[i]
        if entry == signature:
            continue
        value_size = entry.value_size
        copy(content + size, entry.value, value_size)
        size += value_size
    total = BLOCK + size + body_size
    # Fill the block that the body begins in; the blocks inside of the body need no copy.
    part = min(-size & BLOCK - 1, body_size)
    copy(content + size, body, part)
    size += part
    hash_blocks(block, content, size >> BLOCK_BITS)
    content += size & -BLOCK
    size &= BLOCK - 1
    body += part
    body_size -= part
    if body_size > 0:
        hash_blocks(block, body, body_size >> BLOCK_BITS)
        size = body_size & BLOCK - 1
        copy(content, body + body_size - size, size)
    finish_hash(block, content, size, total)


@njit(**COMPILE_OPTIONS)
def letter(value):
    """Return the letter of base64 for a number of six bits, without a branch."""
    above = (25 - value) >> 63 & 6
    above += (51 - value) >> 63 & -75
    above += (61 - value) >> 63 & -15
    above += (62 - value) >> 63 & 3
    return value + 65 + above


@njit(**COMPILE_OPTIONS)
def state_byte(block, i):
    """Return a byte of the hash; 0 after its end."""
    if i >= DIGEST_BYTES:
        return 0
    number_ = get_u32(block.hash.address + (i & ~3))
    return number_ >> 8 * (3 - (i & 3)) & 0xFF


@njit(**COMPILE_OPTIONS)
def is_signature(block, text):
    """Return whether a text of SIGNATURE_BYTES is the base64 of the hash.

    All bytes are compared, whatever differs first.
    """
    difference = 0
    for i in range(words.SIGNATURE_BYTES // 4):
        bits = state_byte(block, 3 * i) << 16
        bits |= state_byte(block, 3 * i + 1) << 8
        bits |= state_byte(block, 3 * i + 2)
        place = text + 4 * i
        difference |= get_u8(place) ^ letter(bits >> 18 & 63)
        difference |= get_u8(place + 1) ^ letter(bits >> 12 & 63)
        difference |= get_u8(place + 2) ^ letter(bits >> 6 & 63)
        if i < words.SIGNATURE_BYTES // 4 - 1:
            difference |= get_u8(place + 3) ^ letter(bits & 63)
        else:
            difference |= get_u8(place + 3) ^ 61  # the padding
    return difference == 0


@njit(**COMPILE_OPTIONS)
def is_signed(block, row, signature, body, body_size):
    """Return whether the frame that was read has the signature of an account."""
    if signature.value_size != words.SIGNATURE_BYTES:
        return False
    begin_hash(block, row.inner)
    hash_content(block, signature, body, body_size)
    inner = block.scratch + words.HEADER_BYTES_MAX + words.SLACK
    for i in range(DIGEST_BYTES // 4):
        store_i32(inner + 4 * i, get_u32(block.hash.address + 4 * i))
    begin_hash(block, row.outer)
    finish_hash(block, inner, DIGEST_BYTES, BLOCK + DIGEST_BYTES)
    return is_signature(block, signature.value)


# --- frames --------------------------------------------------------------------


@njit(**COMPILE_OPTIONS)
def judge(block, row, address, end):
    """Write the verdict about a frame, without its length, to its row."""
    row.verdict = words.ODD
    row.account = -1
    row.code = -1
    row.key = -1
    body = read_header(block, address, end)
    if body == 0:
        return
    row.code = block.frame_code
    name = find_nine(block, ACCESS_KEY, ACCESS_KEY_END)
    signature = find_nine(block, SIGNATURE, SIGNATURE_END)
    if name == 0 or signature == 0:
        row.verdict = words.UNSIGNED
        return
    key, key_size = name.value, name.value_size
    slot = account_slot(block, key, key_size)
    account = block.accounts[slot]
    if slot < 0 or account.epoch != block.epoch:
        row.verdict = words.UNKNOWN
        if address <= key < end:
            row.key = key - block.buffer
            row.key_size = key_size
        return
    if not is_signed(block, account, signature, body, end - body):
        row.verdict = words.BAD
        return
    row.account = slot
    verdict = words.GRANTED if is_granted(block, slot) else words.VERIFIED
    row.verdict = verdict


@njit(**COMPILE_OPTIONS)
def gate(block):
    """Entry point: write a row for each whole frame from ``position`` on; return their number."""
    address = block.buffer + block.position
    limit = block.buffer + block.end
    row = block.frames
    count = 0
    while count < block.rows_max and limit - address >= LENGTH_BYTES:
        size = load_i32(address)
        start = address + LENGTH_BYTES
        if size < FRAME_MIN or size > FRAME_MAX or size > limit - start:
            break
        judge(block, row, start, start + size)
        address = start + size
        row.end = address - block.buffer
        row = row[1]
        count += 1
    return count


@njit(**COMPILE_OPTIONS)
def set_digest(block, digest, pad):
    """Write the hash of a block to a slot of the table of accounts."""
    state = block.hash.address
    put_i32(state, START_A)
    put_i32(state + 4, START_B)
    put_i32(state + 8, START_C)
    put_i32(state + 12, START_D)
    put_i32(state + 16, START_E)
    hash_blocks(block, pad, 1)
    for i in range(words.DIGEST_WORDS):
        digest[i] = block.hash[i]


@njit(**COMPILE_OPTIONS)
def gate_account(block, name, size, pads):
    """Entry point: add an account; return its slot, -1 if there is none.

    The caller has copied the name to memory that stays. ``pads`` is the address of the first blocks
    of the inner and the outer hash: the secret key, xor 0x36 and 0x5C.
    """
    slot = account_slot(block, name, size)
    if slot >= 0:
        row = block.accounts[slot]
        row.name = name
        row.name_size = size
        set_digest(block, row.inner, pads)
        set_digest(block, row.outer, pads + BLOCK)
        row.epoch = block.epoch
    return slot


@njit(**COMPILE_OPTIONS)
def gate_grant(block, account, code, topic, topic_size, group, group_size):
    """Entry point: add a grant for PEER; return its slot, -1 if there is none.

    The caller has copied topic and group to memory that stays.
    """
    slot = grant_slot(block, account, code, topic, topic_size, group, group_size)
    if slot >= 0:
        row = block.grants[slot]
        row.peer = block.peer
        row.account = account
        row.code = code
        row.topic = topic
        row.topic_size = topic_size
        row.group = group
        row.group_size = group_size
        row.epoch = block.epoch
    return slot


ENTRY_POINTS = {
    "gate": (words.GateCall,),
    "gate_account": (words.GateCall, int, int, int),
    "gate_grant": (words.GateCall, int, int, int, int, int, int),
}
"""Entry points and their arguments. Results are numbers."""
