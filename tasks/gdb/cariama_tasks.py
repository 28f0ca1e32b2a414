"""Suspended tasks of a worker, in gdb: live, or in a core file.

  (gdb) source /usr/share/cariama/gdb/cariama_tasks.py
  (gdb) cariama-tasks            one line for each task: number, bytes, addresses, callers
  (gdb) cariama-tasks 3          all return addresses in the frames of task number 3

The frames of a suspended task are in the pinned area of the worker that suspended it
(docs/tasks.md, "Join"). The program needs symbols, but no debug information. The script finds the
callers by searching the frames for return addresses. They are in the right order, but can include
return addresses that an earlier call has left in the same frames.
"""

import re
import struct

import gdb


def words(address, count):
    memory = gdb.selected_inferior().read_memory(address, 8 * count)
    return struct.unpack("<%dQ" % count, bytes(memory))


def suspended():
    """Yields (address of the copy, sp, top)."""
    try:
        table = int(gdb.parse_and_eval("(unsigned long)&cariama_tasks_debug"))
    except gdb.error:
        raise gdb.GdbError("cariama-tasks: this program has no tasks of Cariama, or no symbols")
    begin, size, segments, header, note = words(table, 5)
    for _ in range(segments):
        memory = bytes(gdb.selected_inferior().read_memory(begin, size))
        offset = 0
        while offset + header <= size:
            released, packed = struct.unpack_from("<QI", memory, offset)
            size_class = packed & 0x3FFFFFFF
            if size_class < 6 or offset + (1 << size_class) > size:
                break  # the rest of the segment was never allocated
            if packed >> 31 and released == 0:
                sp, top = struct.unpack_from("<QQ", memory, offset + (1 << size_class) - note)
                yield begin + offset + header, sp, top
            offset += 1 << size_class
        begin, size = begin + size, 2 * size


def function_at(address):
    """Returns the name of the function that contains the return address, or None."""
    found = gdb.execute("info symbol 0x%x" % address, to_string=True)
    match = re.match(r"(.*?)(?: \+ \d+)? in section \.text", found)
    if not match:
        return None
    try:
        code = bytes(gdb.selected_inferior().read_memory(address - 7, 7))
    except gdb.MemoryError:
        return None
    if gdb.selected_inferior().architecture().name().startswith("aarch64"):
        is_call = code[6] in (0x94, 0x97, 0xD6)  # bl, blr
    else:  # call: direct, or through a register or memory
        is_call = code[2] == 0xE8 or any(
            code[7 - n] == 0xFF and code[8 - n] >> 3 & 7 == 2 for n in range(2, 8) if n > 1)
    return match.group(1) if is_call else None


def callers(address, sp, top):
    names = []
    for word in words(address, (top - sp) // 8):
        name = function_at(word) if word > 4096 else None
        # Skip the calls of the scheduler, which are in every task.
        if not name or name.startswith(("cariama::tasks::", "cariama_", "__cxa_")):
            continue
        names.append(re.sub(r"\(.*", "", name.replace("(anonymous namespace)::", "")))
    return names


class CariamaTasks(gdb.Command):
    """Lists suspended tasks: cariama-tasks [NUMBER]"""

    def __init__(self):
        super().__init__("cariama-tasks", gdb.COMMAND_STACK)

    def invoke(self, argument, from_tty):
        tasks = list(suspended())
        if argument:
            if not argument.isdigit() or int(argument) >= len(tasks):
                raise gdb.GdbError("cariama-tasks: there is no task " + argument)
            address, sp, top = tasks[int(argument)]
            for name in callers(address, sp, top):
                print("  " + name)
            return
        print("%d suspended task%s" % (len(tasks), "" if len(tasks) == 1 else "s"))
        for number, (address, sp, top) in enumerate(tasks):
            shown = " < ".join(dict.fromkeys(callers(address, sp, top)))
            print("%4d  %6d bytes at 0x%x, of [0x%x, 0x%x)  %s"
                  % (number, top - sp, address, sp, top, shown))


CariamaTasks()
