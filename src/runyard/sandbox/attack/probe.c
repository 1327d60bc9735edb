/* What an attacker's first program could do, one attempt a call, in any image: no library, no shell, no interpreter.
 *
 *   probe VERB ARGUMENTS…      prints one line: "ok DETAIL" when the attempt worked, "no ERRNO" when it was refused
 *
 * The program judges nothing; attempts.py knows what each answer means. Only system calls that both x86_64 and aarch64
 * have are used. `python tools/build_probe.py` compiles it to the files beside it.
 */

typedef unsigned long word;
typedef long answer;

#if defined(__x86_64__)
enum { READ = 0, WRITE = 1, CLOSE = 3, MMAP = 9, NANOSLEEP = 35, GETPID = 39, SOCKET = 41, CONNECT = 42, CLONE = 56,
       WAIT4 = 61, KILL = 62, SETSID = 112, GETDENTS64 = 217, CLOCK_GETTIME = 228, OPENAT = 257,
       SYMLINKAT = 266, PPOLL = 271, EXIT_GROUP = 231, GETSOCKOPT = 55, FTRUNCATE = 77,
       BIND = 49, LISTEN = 50, RT_SIGACTION = 13 };
static answer call(word n, word a, word b, word c, word d, word e, word f) {
    answer r;
    register word r10 __asm__("r10") = d;
    register word r8 __asm__("r8") = e;
    register word r9 __asm__("r9") = f;
    __asm__ volatile("syscall" : "=a"(r) : "a"(n), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8), "r"(r9)
                     : "rcx", "r11", "memory");
    return r;
}
__asm__(".globl _start\n_start:\n xor %ebp,%ebp\n mov %rsp,%rdi\n and $-16,%rsp\n call begin\n");
#elif defined(__aarch64__)
enum { READ = 63, WRITE = 64, CLOSE = 57, MMAP = 222, NANOSLEEP = 101, GETPID = 172, SOCKET = 198, CONNECT = 203,
       CLONE = 220, WAIT4 = 260, KILL = 129, SETSID = 157, GETDENTS64 = 61, CLOCK_GETTIME = 113,
       OPENAT = 56, SYMLINKAT = 36, PPOLL = 73, EXIT_GROUP = 94, GETSOCKOPT = 209,
       FTRUNCATE = 46, BIND = 200, LISTEN = 201, RT_SIGACTION = 134 };
static answer call(word n, word a, word b, word c, word d, word e, word f) {
    register word x8 __asm__("x8") = n;
    register word x0 __asm__("x0") = a;
    register word x1 __asm__("x1") = b;
    register word x2 __asm__("x2") = c;
    register word x3 __asm__("x3") = d;
    register word x4 __asm__("x4") = e;
    register word x5 __asm__("x5") = f;
    __asm__ volatile("svc 0" : "+r"(x0) : "r"(x8), "r"(x1), "r"(x2), "r"(x3), "r"(x4), "r"(x5) : "memory");
    return (answer)x0;
}
__asm__(".globl _start\n_start:\n mov x29,#0\n mov x0,sp\n bl begin\n");
#endif

#define HERE ((word)-100)
#define C0(n) call(n, 0, 0, 0, 0, 0, 0)
#define C1(n, a) call(n, (word)(a), 0, 0, 0, 0, 0)
#define C2(n, a, b) call(n, (word)(a), (word)(b), 0, 0, 0, 0)
#define C3(n, a, b, c) call(n, (word)(a), (word)(b), (word)(c), 0, 0, 0)
#define C4(n, a, b, c, d) call(n, (word)(a), (word)(b), (word)(c), (word)(d), 0, 0)

void *memset(void *to, int value, word n) {
    char *p = to;
    while (n--) *p++ = (char)value;
    return to;
}

void *memcpy(void *to, const void *from, word n) {
    char *p = to;
    const char *q = from;
    while (n--) *p++ = *q++;
    return to;
}

static word length(const char *s) {
    word n = 0;
    while (s[n]) n++;
    return n;
}

static int same(const char *a, const char *b) {
    while (*a && *a == *b) a++, b++;
    return *a == *b;
}

static void say(const char *s) { C3(WRITE, 1, s, length(s)); }

static void say_number(answer n) {
    char text[24], *p = text + 23;
    int negative = n < 0;
    word u = negative ? (word)-n : (word)n;
    *p = 0;
    do *--p = (char)('0' + u % 10); while (u /= 10);
    if (negative) *--p = '-';
    say(p);
}

static void leave(int code) {
    C1(EXIT_GROUP, code);
    for (;;) {}
}

static void worked(const char *detail, answer n) {
    say("ok ");
    say(detail);
    if (n >= 0) say_number(n);
    say("\n");
    leave(0);
}

static void refused(answer error) {
    say("no ");
    say_number(-error);
    say("\n");
    leave(1);
}

static void tell(answer r) {
    if (r < 0) refused(r);
    worked("", r);
}

static answer number(const char *s) {
    answer n = 0;
    int negative = *s == '-';
    if (negative) s++;
    if (s[0] == '0' && s[1] == 'x') {
        for (s += 2; *s; s++) n = n * 16 + (*s <= '9' ? *s - '0' : *s - 'a' + 10);
    } else {
        for (; *s; s++) n = n * 10 + (*s - '0');
    }
    return negative ? -n : n;
}

static void sleep_ms(answer ms) {
    answer t[2] = {ms / 1000, ms % 1000 * 1000000};
    C2(NANOSLEEP, t, 0);
}

static answer now_ms(void) {
    answer t[2] = {0, 0};
    C2(CLOCK_GETTIME, 1, t);
    return t[0] * 1000 + t[1] / 1000000;
}

/* Bytes of a file; prints the first of them, so that a seeded word can be recognised. */
static char buffer[65536];

static void say_printable(char *from, answer n) {
    for (answer i = 0; i < n; i++)
        if (from[i] < ' ' || from[i] > '~') from[i] = ' ';
    from[n] = 0;
    say(from);
}

static void read_file(const char *path) {
    answer fd = C4(OPENAT, HERE, path, 0x800, 0);
    if (fd < 0) refused(fd);
    answer n = C3(READ, fd, buffer, 4000);
    if (n < 0) refused(n);
    say("ok ");
    say_printable(buffer, n);
    say("\n");
    leave(0);
}

static void write_file(const char *path, const char *text, int flags) {
    answer fd = C4(OPENAT, HERE, path, 1 | flags, 0600);
    if (fd < 0) refused(fd);
    tell(C3(WRITE, fd, text, length(text)));
}

/* Opening for writing is attempt enough: nothing is written to what might be the machine's. */
static void open_for_writing(const char *path) {
    answer fd = C4(OPENAT, HERE, path, 1, 0);
    if (fd < 0) refused(fd);
    worked("opened", -1);
}

static void list_folder(const char *path) {
    answer fd = C4(OPENAT, HERE, path, 0x10000, 0);
    if (fd < 0) refused(fd);
    answer n = C3(GETDENTS64, fd, buffer, sizeof buffer);
    if (n < 0) refused(n);
    say("ok");
    for (answer at = 0; at < n;) {
        unsigned short size;
        memcpy(&size, buffer + at + 16, 2);
        say(" ");
        say(buffer + at + 19);
        at += size;
    }
    say("\n");
    leave(0);
}

/* Whether any process this one can see carries a word in a file of /proc (cmdline, environ). */
static char piece[16384];

static void find_process(const char *word_wanted, const char *file) {
    answer fd = C4(OPENAT, HERE, "/proc", 0x10000, 0), n;
    word wanted = length(word_wanted);
    if (fd < 0) refused(fd);
    answer own = C0(GETPID);
    while ((n = C3(GETDENTS64, fd, buffer, sizeof buffer)) > 0) {
        for (answer at = 0; at < n;) {
            unsigned short size;
            char path[64], *p = path;
            const char *name = buffer + at + 19;
            memcpy(&size, buffer + at + 16, 2);
            at += size;
            if (*name < '1' || *name > '9' || number(name) == own) continue;
            memcpy(p, "/proc/", 6), p += 6;
            memcpy(p, name, length(name)), p += length(name);
            *p++ = '/';
            memcpy(p, file, length(file) + 1);
            answer opened = C4(OPENAT, HERE, path, 0, 0);
            if (opened < 0) continue;
            answer got = C3(READ, opened, piece, sizeof piece);
            C1(CLOSE, opened);
            for (answer i = 0; i + (answer)wanted <= got; i++) {
                word k = 0;
                while (k < wanted && piece[i + (answer)k] == word_wanted[k]) k++;
                if (k == wanted) {
                    say("ok ");
                    say(name);
                    say("\n");
                    leave(0);
                }
            }
        }
    }
    refused(-2);
}

static void parse_ip(const char *s, unsigned char *to) {
    for (int i = 0; i < 4; i++) {
        int n = 0;
        while (*s >= '0' && *s <= '9') n = n * 10 + (*s++ - '0');
        to[i] = (unsigned char)n;
        if (*s) s++;
    }
}

static int hex(char c) { return c <= '9' ? c - '0' : c - 'a' + 10; }

static word make_address(const char *host, answer port, unsigned char *to) {
    memset(to, 0, 110);
    if (host[0] == '@' || host[0] == '/') { /* a unix socket, @ for an abstract one */
        to[0] = 1;
        memcpy(to + 2, host, length(host));
        if (host[0] == '@') to[2] = 0;
        return 2 + length(host) + (host[0] == '/');
    }
    to[2] = (unsigned char)(port >> 8), to[3] = (unsigned char)port;
    if (length(host) == 32) { /* IPv6 as 32 hexadecimal digits, then its scope */
        to[0] = 10;
        for (int i = 0; i < 16; i++) to[8 + i] = (unsigned char)(hex(host[2 * i]) * 16 + hex(host[2 * i + 1]));
        to[24] = 2;
        return 28;
    }
    to[0] = 2;
    parse_ip(host, to + 4);
    return 16;
}

static void connect_to(const char *host, answer port, answer ms, const char *question) {
    unsigned char address[110];
    word size = make_address(host, port, address);
    answer fd = C3(SOCKET, address[0], 1 | 0x800, 0);
    if (fd < 0) refused(fd);
    answer r = C3(CONNECT, fd, address, size);
    if (r == -115 || r == -11) {
        struct { int fd; short asked, got; } poll = {(int)fd, 4, 0};
        answer t[2] = {ms / 1000, ms % 1000 * 1000000};
        int error = 0, error_size = 4;
        r = call(PPOLL, (word)&poll, 1, (word)t, 0, 8, 0);
        if (r == 0) refused(-110);
        if (r > 0) {
            call(GETSOCKOPT, (word)fd, 1, 4, (word)&error, (word)&error_size, 0);
            r = -error;
        }
    }
    if (r < 0) refused(r);
    struct { int fd; short asked, got; } poll = {(int)fd, 1, 0};
    answer t[2] = {0, 300000000};
    if (question) {
        t[0] = ms / 1000;
        C3(WRITE, fd, question, length(question));
        C3(WRITE, fd, "\r\n\r\n", 4);
    }
    answer n = call(PPOLL, (word)&poll, 1, (word)t, 0, 8, 0) > 0 ? C3(READ, fd, buffer, 200) : 0;
    say("ok connected ");
    say_printable(buffer, n > 0 ? n : 0);
    say("\n");
    leave(0);
}

/* Listen and stay: what a sibling job has open while others look for it. */
static void listen_on(const char *host, answer port, answer ms) {
    unsigned char address[110];
    word size = make_address(host, port, address);
    answer fd = C3(SOCKET, address[0], 1, 0);
    answer r = fd < 0 ? fd : C3(BIND, fd, address, size);
    if (r >= 0) r = C2(LISTEN, fd, 8);
    if (r < 0) refused(r);
    say("ok listening\n");
    sleep_ms(ms);
    leave(0);
}

/* How many children live at a time before the kernel says no; at most `wanted`. They end with their maker. */
static void fork_many(answer wanted) {
    static int children[8192];
    answer made = 0, error = 0;
    for (; made < wanted && made < 8192; made++) {
        answer child = call(CLONE, 17, 0, 0, 0, 0, 0);
        if (child == 0) {
            sleep_ms(4000);
            leave(0);
        }
        if (child < 0) {
            error = child;
            break;
        }
        children[made] = (int)child;
    }
    for (answer i = 0; i < made; i++) C2(KILL, children[i], 9);
    for (answer i = 0; i < made; i++) C4(WAIT4, children[i], 0, 0, 0);
    say("ok made ");
    say_number(made);
    say(" then ");
    say_number(-error);
    say("\n");
    leave(0);
}

/* Memory that is really touched, in pieces of 1 MiB. */
static void eat(answer megabytes) {
    for (answer i = 0; i < megabytes; i++) {
        char *p = (char *)call(MMAP, 0, 1 << 20, 3, 0x22, (word)-1, 0);
        if ((answer)p < 0 && (answer)p > -4096) refused((answer)p);
        for (int at = 0; at < 1 << 20; at += 4096) p[at] = (char)(i + at);
    }
    worked("ate ", megabytes);
}

static void fill(const char *path, answer megabytes) {
    answer fd = C4(OPENAT, HERE, path, 1 | 0100 | 01000, 0600), done = 0;
    if (fd < 0) refused(fd);
    memset(buffer, 'x', sizeof buffer);
    while (done < megabytes * 16) {
        answer n = C3(WRITE, fd, buffer, sizeof buffer);
        if (n < 0) {
            C2(FTRUNCATE, fd, 0);
            say("no ");
            say_number(-n);
            say(" after ");
            say_number(done / 16);
            say("\n");
            leave(1);
        }
        done++;
    }
    C2(FTRUNCATE, fd, 0);
    worked("wrote ", megabytes);
}

/* Burn a core for some time; the answer is the CPU time that was got, in milliseconds. */
static void spin(answer ms) {
    answer until = now_ms() + ms, t[2] = {0, 0};
    while (now_ms() < until) {}
    C2(CLOCK_GETTIME, 2, t);
    worked("", t[0] * 1000 + t[1] / 1000000);
}

/* Hard to end: a session of its own, deaf to every signal that can be ignored, its maker gone. */
static void linger(answer ms) {
    if (call(CLONE, 17, 0, 0, 0, 0, 0) != 0) {
        say("ok left\n");
        leave(0);
    }
    C0(SETSID);
    struct { word handler, flags, restorer, mask; } ignore = {1, 0, 0, 0};
    for (int n = 1; n < 32; n++) call(RT_SIGACTION, (word)n, (word)&ignore, 0, 8, 0, 0);
    if (call(CLONE, 17, 0, 0, 0, 0, 0) != 0) leave(0);
    for (int fd = 0; fd < 3; fd++) C1(CLOSE, fd);
    sleep_ms(ms);
    leave(0);
}

/* Any system call: numbers, @TEXT for a pointer to text, %SIZE for a pointer to that many zero bytes. */
static char zeros[4096];

static void any_call(int count, char **arguments) {
    word a[7] = {0, 0, 0, 0, 0, 0, 0};
    for (int i = 0; i < count && i < 7; i++) {
        char *s = arguments[i];
        a[i] = *s == '@' ? (word)(s + 1) : *s == '%' ? (word)zeros : (word)number(s);
    }
    tell(call(a[0], a[1], a[2], a[3], a[4], a[5], a[6]));
}

#if defined(__x86_64__)
/* getpid by the 32-bit entry, whose calls have other numbers than the filter knows. */
static void old_entry(void) {
    int r;
    __asm__ volatile("int $0x80" : "=a"(r) : "a"(20) : "memory");
    tell(r);
}
#else
static void old_entry(void) { refused(-38); }
#endif

/* A system call in a child, so that what it changes ends with it. */
static void any_call_in_child(int count, char **arguments) {
    answer child = call(CLONE, 17, 0, 0, 0, 0, 0);
    if (child < 0) refused(child);
    if (child == 0) any_call(count, arguments);
    int status = 0;
    C4(WAIT4, child, &status, 0, 0);
    leave(status & 127 ? 128 + (status & 127) : status >> 8 & 255);
}

void begin(word *stack) {
    int count = (int)stack[0];
    char **v = (char **)(stack + 1);
    if (count < 2) leave(2);
    const char *verb = v[1];
    answer one = count > 2 ? number(v[2]) : 0;
    if (same(verb, "call") && count > 2) any_call(count - 2, v + 2);
    if (same(verb, "childcall") && count > 2) any_call_in_child(count - 2, v + 2);
    if (same(verb, "read") && count > 2) read_file(v[2]);
    if (same(verb, "write") && count > 3) write_file(v[2], v[3], 0);
    if (same(verb, "create") && count > 3) write_file(v[2], v[3], 0100);
    if (same(verb, "open") && count > 2) open_for_writing(v[2]);
    if (same(verb, "list") && count > 2) list_folder(v[2]);
    if (same(verb, "find") && count > 3) find_process(v[2], v[3]);
    if (same(verb, "connect") && count > 4) connect_to(v[2], number(v[3]), number(v[4]), count > 5 ? v[5] : 0);
    if (same(verb, "listen") && count > 4) listen_on(v[2], number(v[3]), number(v[4]));
    if (same(verb, "fork") && count > 2) fork_many(one);
    if (same(verb, "eat") && count > 2) eat(one);
    if (same(verb, "fill") && count > 3) fill(v[2], number(v[3]));
    if (same(verb, "spin") && count > 2) spin(one);
    if (same(verb, "linger") && count > 2) linger(one);
    if (same(verb, "sleep") && count > 2) sleep_ms(one), worked("slept", -1);
    if (same(verb, "link") && count > 3) tell(C3(SYMLINKAT, v[2], HERE, v[3]));
    if (same(verb, "oldentry")) old_entry();
    if (same(verb, "hello")) worked("hello", -1);
    leave(2);
}
