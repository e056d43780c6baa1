// What Bochs calls in user_mode.cc. `bochs.h` includes it.

#ifndef OCTAVO_USER_MODE_H
#define OCTAVO_USER_MODE_H

void emulated_load();
Bit64u emulated_call(Bit64u number, const Bit64u *of, Bit64u *base);
void emulated_exception(unsigned vector, Bit64u at, Bit64u address);

// The instruction SYSCALL, in a member of the processor.
#define EMULATED_CALL                                                                                                          \
  {                                                                                                                            \
    const Bit64u of[] = {RDI, RSI, RDX, R10, R8, R9};                                                                          \
    Bit64u base = MSR_FSBASE;                                                                                                  \
    RAX = emulated_call(RAX, of, &base);                                                                                       \
    MSR_FSBASE = base;                                                                                                         \
    RCX = RIP;                                                                                                                 \
    R11 = read_eflags();                                                                                                       \
    BX_NEXT_TRACE(i);                                                                                                          \
  }

#endif
