# The first code of the emulated processor, instead of a BIOS: 64-bit mode, all of the extended state, and the program.

.set TABLES, 0x60000000         # user_mode.cc writes them
.set START, 0x60010000          # extended state, stack pointer, address of the program
.set ROM, 0xf0000

.code16
.globl _start
_start:
    cli
    lgdtl %cs:(table)
    mov %cr4, %eax
    or $0x40620, %eax           # PAE, SSE, XSAVE
    mov %eax, %cr4
    mov $TABLES, %eax
    mov %eax, %cr3
    mov $0xc0000080, %ecx       # EFER: system calls, long mode
    rdmsr
    or $0x101, %eax
    wrmsr
    mov $0x80000033, %eax       # paging, protection, x87
    mov %eax, %cr0
    ljmpl $8, $(ROM + long)
.code64
long:
    mov $16, %eax
    mov %eax, %ds
    mov %eax, %es
    mov %eax, %ss
    xor %eax, %eax
    mov %eax, %fs
    mov %eax, %gs
    fninit
    mov $START, %ebx
    mov (%rbx), %eax
    xor %edx, %edx
    xor %ecx, %ecx
    xsetbv
    mov 8(%rbx), %rsp
    mov 16(%rbx), %rax
    xor %ebx, %ebx
    xor %ebp, %ebp
    jmp *%rax
.align 8
segments:
    .quad 0
    .quad 0x00af9b000000ffff    # code
    .quad 0x00cf93000000ffff    # data
table:
    .word 23
    .long ROM + segments
.org 0xfff0
.code16
    ljmp $0xf000, $0            # where the processor begins
.org 0x10000
