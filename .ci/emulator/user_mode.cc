// Runs a static Linux program in Bochs without an operating system: loads it, and answers its system calls.
//
// Memory is mapped as it lies, for all to read, write and execute; the program runs alone, on one thread.

#include "bochs.h"
#include "memory/memory-bochs.h"

#include <elf.h>
#include <time.h>
#include <unistd.h>

#include <map>
#include <string>
#include <vector>

namespace {

// Guest memory: the program, its stack below STACK, what it maps, and what boot.S reads.
const Bit64u STACK = 0x1ff00000, MAPPED = 0x20000000, MAPPED_END = 0x5f000000, TABLES = 0x60000000, START = 0x60010000;
const Bit64u PAGE = 4096;
// The descriptor of the one file that is there: random numbers.
const Bit64u RANDOM = 100;

Bit64u heap_start, heap_end, next_map = MAPPED;
std::map<Bit64u, Bit64u> mapped;        // bytes by address
std::multimap<Bit64u, Bit64u> unmapped; // addresses by bytes

Bit64u failed(int error) { return -(Bit64u)error; }

// Writes guest memory; zeros where `from` is null.
void write(Bit64u to, const void *from, Bit64u bytes) {
  const Bit8u *at = (const Bit8u *)from;
  while (bytes > 0) {
    Bit64u some = PAGE - to % PAGE < bytes ? PAGE - to % PAGE : bytes;
    Bit8u *host = BX_MEM(0)->get_vector(to);
    if (at != NULL) {
      memcpy(host, at, some);
      at += some;
    } else {
      memset(host, 0, some);
    }
    to += some;
    bytes -= some;
  }
}

std::vector<Bit8u> read(Bit64u from, Bit64u bytes) {
  std::vector<Bit8u> found;
  while (found.size() < bytes) {
    Bit64u some = PAGE - from % PAGE;
    const Bit8u *host = BX_MEM(0)->get_vector(from);
    if (some > bytes - found.size()) some = bytes - found.size();
    found.insert(found.end(), host, host + some);
    from += some;
  }
  return found;
}

void write_word(Bit64u to, Bit64u value) { write(to, &value, sizeof value); }

Bit64u read_word(Bit64u from) {
  Bit64u value;
  memcpy(&value, read(from, sizeof value).data(), sizeof value);
  return value;
}

Bit64u map(Bit64u bytes) {
  bytes = (bytes + PAGE - 1) / PAGE * PAGE;
  Bit64u at = next_map;
  std::multimap<Bit64u, Bit64u>::iterator free = unmapped.find(bytes);
  if (free != unmapped.end()) {
    at = free->second;
    unmapped.erase(free);
  } else if (bytes > MAPPED_END - at) {
    return failed(ENOMEM);
  } else {
    next_map += bytes;
  }
  write(at, NULL, bytes);
  mapped[at] = bytes;
  return at;
}

Bit64u unmap(Bit64u at, Bit64u bytes) {
  std::map<Bit64u, Bit64u>::iterator found = mapped.find(at);
  if (found != mapped.end() && found->second == (bytes + PAGE - 1) / PAGE * PAGE) {
    unmapped.insert(std::make_pair(found->second, at));
    mapped.erase(found);
  }
  return 0;
}

Bit64u print(Bit64u from, Bit64u bytes) {
  std::vector<Bit8u> text = read(from, bytes);
  fwrite(text.data(), 1, text.size(), stdout);
  fflush(stdout);
  return bytes;
}

Bit64u randomize(Bit64u to, Bit64u bytes) {
  for (Bit64u i = 0; i < bytes; i++) {
    Bit8u value = (Bit8u)(rand() >> 4);
    write(to + i, &value, 1);
  }
  return bytes;
}

void leave(int status) {
  fflush(NULL);
  _exit(status);
}

} // namespace

// Loads the program that OCTAVO_EMULATED names, with the arguments and variables of OCTAVO_EMULATED_ARGUMENTS and
// OCTAVO_EMULATED_VARIABLES, separated by spaces; boot.S starts it with the extended state OCTAVO_EMULATED_STATE.
void emulated_load() {
  FILE *file = fopen(getenv("OCTAVO_EMULATED"), "rb");
  std::vector<Bit8u> bytes;
  for (int byte; file != NULL && (byte = getc(file)) != EOF;) bytes.push_back((Bit8u)byte);
  if (bytes.size() < sizeof(Elf64_Ehdr)) {
    fprintf(stderr, "emulator: %s is no program\n", getenv("OCTAVO_EMULATED"));
    leave(2);
  }
  fclose(file);
  const Elf64_Ehdr *header = (const Elf64_Ehdr *)bytes.data();
  const Elf64_Phdr *parts = (const Elf64_Phdr *)(bytes.data() + header->e_phoff);
  Bit64u headers = 0;
  for (int i = 0; i < header->e_phnum; i++) {
    const Elf64_Phdr &part = parts[i];
    if (part.p_type != PT_LOAD) continue;
    write(part.p_vaddr, bytes.data() + part.p_offset, part.p_filesz);
    write(part.p_vaddr + part.p_filesz, NULL, part.p_memsz - part.p_filesz);
    if (part.p_vaddr + part.p_memsz > heap_start) heap_start = part.p_vaddr + part.p_memsz;
    if (header->e_phoff - part.p_offset < part.p_filesz) headers = part.p_vaddr + header->e_phoff - part.p_offset;
  }
  heap_start = heap_end = (heap_start + PAGE - 1) / PAGE * PAGE;

  // Four gigabytes, in pages of one.
  write(TABLES, NULL, 2 * PAGE);
  write_word(TABLES, TABLES + PAGE + 3);
  for (Bit64u i = 0; i < 4; i++) write_word(TABLES + PAGE + 8 * i, i << 30 | 0x83);

  Bit64u stack = STACK;
  std::vector<Bit64u> words(1, 0);
  const char *lists[] = {"OCTAVO_EMULATED_ARGUMENTS", "OCTAVO_EMULATED_VARIABLES"};
  for (int list = 0; list < 2; list++) {
    std::string all = std::string(list == 0 ? "program " : "") + (getenv(lists[list]) ? getenv(lists[list]) : "") + " ";
    for (size_t start = 0, end; (end = all.find(' ', start)) != std::string::npos; start = end + 1) {
      if (end == start) continue;
      std::string word = all.substr(start, end - start);
      stack -= word.size() + 1;
      write(stack, word.c_str(), word.size() + 1);
      words.push_back(stack);
      words[0] += list == 0;
    }
    words.push_back(0);
  }
  stack = stack / 64 * 64 - 64;
  randomize(stack, 16);
  const Bit64u auxiliary[] = {AT_PAGESZ, PAGE,  AT_PHDR,  headers,         AT_PHENT,  sizeof(Elf64_Phdr), AT_PHNUM, header->e_phnum,
                              AT_RANDOM, stack, AT_ENTRY, header->e_entry, AT_SECURE, 0,                  AT_NULL,  0};
  words.insert(words.end(), auxiliary, auxiliary + sizeof auxiliary / sizeof *auxiliary);
  stack = (stack - 8 * words.size()) / 16 * 16;
  for (size_t i = 0; i < words.size(); i++) write_word(stack + 8 * i, words[i]);

  write_word(START, strtoull(getenv("OCTAVO_EMULATED_STATE"), NULL, 16));
  write_word(START + 8, stack);
  write_word(START + 16, header->e_entry);
}

// Answers a system call of Linux on x86-64; `base` is that of segment FS.
Bit64u emulated_call(Bit64u number, const Bit64u *of, Bit64u *base) {
  switch (number) {
  case 0: // read
    return of[0] == RANDOM ? randomize(of[1], of[2]) : 0;
  case 1: // write
    return print(of[1], of[2]);
  case 2: // open, openat
  case 257: {
    std::vector<Bit8u> name = read(of[number == 2 ? 0 : 1], 64);
    name.push_back(0);
    return strstr((const char *)name.data(), "random") ? RANDOM : failed(ENOENT);
  }
  case 7: { // poll
    Bit64u ready = 0;
    for (Bit64u i = 0; i < of[1]; i++) {
      bool random = (Bit32u)read_word(of[0] + 8 * i) == RANDOM;
      short events = random;
      write(of[0] + 8 * i + 6, &events, sizeof events);
      ready += random;
    }
    return ready;
  }
  case 9: // mmap
    if (of[3] & 0x10) {
      write(of[0], NULL, of[1]);
      return of[0];
    }
    return map(of[1]);
  case 11: // munmap
    return unmap(of[0], of[1]);
  case 12: // brk
    if (of[0] >= heap_start && of[0] < STACK - (64 << 20)) {
      if (of[0] > heap_end) write(heap_end, NULL, of[0] - heap_end);
      heap_end = of[0];
    }
    return heap_end;
  case 20: { // writev
    Bit64u written = 0;
    for (Bit64u i = 0; i < of[2]; i++) written += print(read_word(of[1] + 16 * i), read_word(of[1] + 16 * i + 8));
    return written;
  }
  case 25: { // mremap
    Bit64u at = map(of[2]);
    if (at < MAPPED_END) {
      write(at, read(of[0], of[1] < of[2] ? of[1] : of[2]).data(), of[1] < of[2] ? of[1] : of[2]);
      unmap(of[0], of[1]);
    }
    return at;
  }
  case 3:   // close
  case 10:  // mprotect
  case 13:  // rt_sigaction
  case 14:  // rt_sigprocmask
  case 24:  // sched_yield
  case 28:  // madvise
  case 131: // sigaltstack
  case 157: // prctl
  case 273: // set_robust_list
    return 0;
  case 39: // getpid, gettid, set_tid_address
  case 186:
  case 218:
    return 1;
  case 158: // arch_prctl: FS, and permission to use AMX
    if (of[0] == 0x1002) *base = of[1];
    return of[0] == 0x1002 || of[0] == 0x1023 ? 0 : failed(EINVAL);
  case 204: // sched_getaffinity: one core
    write_word(of[2], 1);
    return 8;
  case 228: { // clock_gettime
    struct timespec now;
    clock_gettime((clockid_t)of[0], &now);
    write_word(of[1], (Bit64u)now.tv_sec);
    write_word(of[1] + 8, (Bit64u)now.tv_nsec);
    return 0;
  }
  case 318: // getrandom
    return randomize(of[0], of[1]);
  case 56: // clone, clone3, and futex: there are no other threads
  case 435:
  case 202:
    return number == 202 && (of[1] & 127) != 0 ? 0 : failed(EAGAIN);
  case 60: // exit, exit_group
  case 231:
    leave((int)of[0]);
  case 62: // kill, tkill, tgkill
  case 200:
  case 234:
    fprintf(stderr, "emulator: the program ended itself by signal %d\n", (int)of[number == 234 ? 2 : 1]);
    leave(128 + (int)of[number == 234 ? 2 : 1]);
  case 21: // access, readlink, newfstatat, readlinkat
  case 89:
  case 262:
  case 267:
    return failed(ENOENT);
  default:
    return failed(ENOSYS);
  }
}

// Ends where the processor has no answer to an exception: the program has no handlers.
void emulated_exception(unsigned vector, Bit64u at, Bit64u address) {
  fprintf(stderr, "emulator: exception %u at %lx, address %lx\n", vector, (unsigned long)at, (unsigned long)address);
  leave(128 + 11);
}
