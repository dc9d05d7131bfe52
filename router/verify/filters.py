"""The system calls that a caged program may not make, as the kernel's filter wants them.

What a compiler needs is left alone: it reads files and takes memory. Whatever reaches another process, the network or
the kernel's corners is refused, so that a flaw in the compiler leads nowhere."""

import ctypes
import errno

MACHINES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
"""As the kernel's audit names them."""

_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_NUMBER, _MACHINE, _FIRST_ARGUMENT = 0, 4, 16
_KILL, _ALLOW, _ERROR = 0x80000000, 0x7FFF0000, 0x00050000
_THREAD = 0x00010000
_OTHER_TABLE = 0x40000000
"""x86_64's calls from here on are a second table of the same ones."""

_REFUSED: dict[str, tuple[int | None, int | None]] = {
    "socket": (41, 198),
    "socketpair": (53, 199),
    "fork": (57, None),
    "vfork": (58, None),
    "kill": (62, 129),
    "tkill": (200, 130),
    "tgkill": (234, 131),
    "rt_sigqueueinfo": (129, 138),
    "rt_tgsigqueueinfo": (297, 240),
    "pidfd_send_signal": (424, 424),
    "pidfd_open": (434, 434),
    "pidfd_getfd": (438, 438),
    "ptrace": (101, 117),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "kcmp": (312, 272),
    "setpgid": (109, 154),
    "setsid": (112, 157),
    "shmget": (29, 194),
    "shmat": (30, 196),
    "semget": (64, 190),
    "msgget": (68, 186),
    "mq_open": (240, 180),
    "truncate": (76, 45),
    "chmod": (90, None),
    "fchmod": (91, 52),
    "fchmodat": (268, 53),
    "fchmodat2": (452, 452),
    "chown": (92, None),
    "fchown": (93, 55),
    "lchown": (94, None),
    "fchownat": (260, 54),
    "utime": (132, None),
    "utimes": (235, None),
    "futimesat": (261, None),
    "utimensat": (280, 88),
    "setxattr": (188, 5),
    "lsetxattr": (189, 6),
    "fsetxattr": (190, 7),
    "removexattr": (197, 14),
    "lremovexattr": (198, 15),
    "fremovexattr": (199, 16),
    "setxattrat": (463, 463),
    "removexattrat": (466, 466),
    "mount": (165, 40),
    "umount2": (166, 39),
    "pivot_root": (155, 41),
    "chroot": (161, 51),
    "unshare": (272, 97),
    "setns": (308, 268),
    "open_tree": (428, 428),
    "move_mount": (429, 429),
    "fsopen": (430, 430),
    "fsconfig": (431, 431),
    "fsmount": (432, 432),
    "fspick": (433, 433),
    "mount_setattr": (442, 442),
    "open_tree_attr": (467, 467),
    "name_to_handle_at": (303, 264),
    "open_by_handle_at": (304, 265),
    "add_key": (248, 217),
    "request_key": (249, 218),
    "keyctl": (250, 219),
    "perf_event_open": (298, 241),
    "bpf": (321, 280),
    "userfaultfd": (323, 282),
    "io_uring_setup": (425, 425),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
}
_CLONE = (56, 220)
_CLONE3 = (435, 435)
_PRLIMIT = (302, 261)


class Instruction(ctypes.Structure):
    _fields_ = (("code", ctypes.c_ushort), ("yes", ctypes.c_ubyte), ("no", ctypes.c_ubyte), ("value", ctypes.c_uint32))


def filter_program(machine: str) -> list[Instruction]:
    """Raises KeyError for a machine whose calls are not known."""
    refused = _ERROR | errno.EPERM
    column = list(MACHINES).index(machine)
    program = [
        Instruction(_LOAD, 0, 0, _MACHINE),
        Instruction(_EQUAL, 1, 0, MACHINES[machine]),
        Instruction(_RETURN, 0, 0, _KILL),
        Instruction(_LOAD, 0, 0, _NUMBER),
        Instruction(_AT_LEAST, 0, 1, _OTHER_TABLE),
        Instruction(_RETURN, 0, 0, refused),
    ]
    for numbers in _REFUSED.values():
        number = numbers[column]
        if number is not None:
            program += _answer(number, refused)
    program += _answer(_CLONE3[column], _ERROR | errno.ENOSYS)
    program += _by_first_argument(_CLONE[column], Instruction(_ANY_BIT, 1, 0, _THREAD), refused)
    program += _by_first_argument(_PRLIMIT[column], Instruction(_EQUAL, 1, 0, 0), refused)
    return [*program, Instruction(_RETURN, 0, 0, _ALLOW)]


def _answer(number: int, what: int) -> list[Instruction]:
    return [Instruction(_EQUAL, 0, 1, number), Instruction(_RETURN, 0, 0, what)]


def _by_first_argument(number: int, allowed: Instruction, otherwise: int) -> list[Instruction]:
    """The argument's low half is looked at: the flags of clone and the number of a process have no other."""
    return [
        Instruction(_EQUAL, 0, 4, number),
        Instruction(_LOAD, 0, 0, _FIRST_ARGUMENT),
        allowed,
        Instruction(_RETURN, 0, 0, otherwise),
        Instruction(_RETURN, 0, 0, _ALLOW),
    ]
