/*
 * xskfwd forwards between two ports over AF_XDP, in one direction, with as
 * little as that takes: the yardstick of nmfwd over AF_XDP.
 *
 *	xskfwd IN OUT QUEUES FROM-MAC TO-MAC
 *
 * One thread per queue, on the CPU of its number, receives from queue q of IN
 * and sends by queue q of OUT. Both sockets share one UMEM, so frames are
 * changed where they lie. IPv4 to 198.19.0.0/16 and IPv6 to
 * 2001:2:0:8000::/49 is checked, gets its TTL decremented and the addresses
 * given; all else is dropped. It runs until it is killed.
 */
#define _GNU_SOURCE
#include <err.h>
#include <errno.h>
#include <linux/bpf.h>
#include <linux/if_link.h>
#include <linux/if_xdp.h>
#include <net/if.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#ifndef XDP_MAX_TX_SKB_BUDGET
#define XDP_MAX_TX_SKB_BUDGET 9
#endif

enum { RING = 2048, FRAMES = 4 * RING, FRAME = 2048, BATCH = 256 };

struct ring {
	uint32_t *producer, *consumer;
	void *descs;
};

struct queue {
	int number, rx_fd, tx_fd;
	uint8_t *umem;
	struct ring rx, tx, fill, done;
	uint64_t free[FRAMES];
	unsigned nfree;
};

static unsigned in_port, out_port;
static uint8_t head[12]; /* addresses to send with */

static int bpf(int cmd, union bpf_attr *attr) { return syscall(SYS_bpf, cmd, attr, sizeof *attr); }

static struct ring map_ring(int fd, const struct xdp_ring_offset *o, off_t where, size_t entry)
{
	uint8_t *p = mmap(NULL, o->desc + RING * entry, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, fd, where);

	if (p == MAP_FAILED)
		err(1, "map ring");
	return (struct ring){ (uint32_t *)(p + o->producer), (uint32_t *)(p + o->consumer), p + o->desc };
}

static void set(int fd, int option, int value)
{
	if (setsockopt(fd, SOL_XDP, option, &value, sizeof value) != 0)
		err(1, "socket option %d", option);
}

/* open_socket binds a socket to a queue of a port; umem_fd is the socket whose
 * UMEM it shares, or -1 to register q->umem. */
static int open_socket(struct queue *q, unsigned port, int umem_fd)
{
	int fd = socket(AF_XDP, SOCK_RAW, 0);
	struct sockaddr_xdp a = { .sxdp_family = AF_XDP, .sxdp_ifindex = port, .sxdp_queue_id = q->number };
	struct xdp_umem_reg reg = { .addr = (uintptr_t)q->umem, .len = (uint64_t)FRAMES * FRAME, .chunk_size = FRAME };
	struct xdp_mmap_offsets off;
	socklen_t len = sizeof off;

	if (fd < 0)
		err(1, "AF_XDP");
	if (umem_fd < 0 && setsockopt(fd, SOL_XDP, XDP_UMEM_REG, &reg, sizeof reg) != 0)
		err(1, "register UMEM");
	set(fd, XDP_UMEM_FILL_RING, RING);
	set(fd, XDP_UMEM_COMPLETION_RING, RING);
	set(fd, umem_fd < 0 ? XDP_RX_RING : XDP_TX_RING, RING);
	if (getsockopt(fd, SOL_XDP, XDP_MMAP_OFFSETS, &off, &len) != 0)
		err(1, "ring offsets");
	if (umem_fd < 0) {
		q->fill = map_ring(fd, &off.fr, XDP_UMEM_PGOFF_FILL_RING, 8);
		q->rx = map_ring(fd, &off.rx, XDP_PGOFF_RX_RING, sizeof(struct xdp_desc));
	} else {
		int budget = BATCH;
		q->done = map_ring(fd, &off.cr, XDP_UMEM_PGOFF_COMPLETION_RING, 8);
		q->tx = map_ring(fd, &off.tx, XDP_PGOFF_TX_RING, sizeof(struct xdp_desc));
		setsockopt(fd, SOL_XDP, XDP_MAX_TX_SKB_BUDGET, &budget, sizeof budget); /* since Linux 6.18 */
		a.sxdp_flags = XDP_SHARED_UMEM;
		a.sxdp_shared_umem_fd = umem_fd;
	}
	if (bind(fd, (struct sockaddr *)&a, sizeof a) != 0)
		err(1, "bind to queue %d", q->number);
	return fd;
}

/* attach makes port in_port give every frame to the socket of its queue. */
static void attach(struct queue *queues, int n)
{
	union bpf_attr map = { .map_type = BPF_MAP_TYPE_XSKMAP, .key_size = 4, .value_size = 4, .max_entries = n };
	int map_fd = bpf(BPF_MAP_CREATE, &map), prog_fd;

	if (map_fd < 0)
		err(1, "socket map");
	for (uint32_t i = 0; i < (uint32_t)n; i++) {
		union bpf_attr e = { .map_fd = map_fd, .key = (uintptr_t)&i, .value = (uintptr_t)&queues[i].rx_fd };
		if (bpf(BPF_MAP_UPDATE_ELEM, &e) != 0)
			err(1, "socket map");
	}
	/* return bpf_redirect_map(&map, ctx->rx_queue_index, XDP_PASS) */
	struct bpf_insn code[] = {
		{ BPF_LDX | BPF_W | BPF_MEM, BPF_REG_2, BPF_REG_1, offsetof(struct xdp_md, rx_queue_index), 0 },
		{ BPF_LD | BPF_DW | BPF_IMM, BPF_REG_1, BPF_PSEUDO_MAP_FD, 0, map_fd },
		{ 0, 0, 0, 0, 0 },
		{ BPF_ALU64 | BPF_MOV | BPF_K, BPF_REG_3, 0, 0, XDP_PASS },
		{ BPF_JMP | BPF_CALL, 0, 0, 0, BPF_FUNC_redirect_map },
		{ BPF_JMP | BPF_EXIT, 0, 0, 0, 0 },
	};
	union bpf_attr prog = { .prog_type = BPF_PROG_TYPE_XDP, .insns = (uintptr_t)code, .insn_cnt = sizeof code / sizeof *code, .license = (uintptr_t)"BSD" };
	if ((prog_fd = bpf(BPF_PROG_LOAD, &prog)) < 0)
		err(1, "load program");
	union bpf_attr link = { .link_create = { .prog_fd = prog_fd, .target_ifindex = in_port, .attach_type = BPF_XDP, .flags = XDP_FLAGS_DRV_MODE } };
	if (bpf(BPF_LINK_CREATE, &link) < 0)
		err(1, "attach program");
}

static uint16_t fold(uint64_t s)
{
	while (s >> 16)
		s = (s & 0xffff) + (s >> 16);
	return s;
}

/* forward makes a received frame the one to send and returns its length, 0 to
 * drop it. */
static uint32_t forward(uint8_t *p, uint32_t n)
{
	static const uint8_t net6[6] = { 0x20, 0x01, 0, 2, 0, 0 };
	uint8_t *ip = p + 14;
	uint16_t w[10];
	uint64_t s = 0;
	uint32_t len;

	if (n >= 34 && p[12] == 0x08 && p[13] == 0x00) {
		len = ip[2] << 8 | ip[3];
		memcpy(w, ip, 20);
		for (int i = 0; i < 10; i++)
			s += w[i];
		if (ip[0] != 0x45 || len < 20 || len + 14 > n || fold(s) != 0xffff || ip[8] <= 1 || ip[16] != 198 || ip[17] != 19)
			return 0;
		ip[8]--;
		s = fold((uint16_t)~(ip[10] << 8 | ip[11]) + 0xfeffull);
		ip[10] = (uint16_t)~s >> 8;
		ip[11] = ~s;
		len += 14;
	} else if (n >= 54 && p[12] == 0x86 && p[13] == 0xdd) {
		len = 54 + (ip[4] << 8 | ip[5]);
		if (ip[0] >> 4 != 6 || len > n || ip[7] <= 1 || memcmp(ip + 24, net6, 6) != 0 || ip[30] < 0x80)
			return 0;
		ip[7]--;
	} else {
		return 0;
	}
	memcpy(p, head, 12);
	return len;
}

#define load(p) __atomic_load_n(p, __ATOMIC_ACQUIRE)
#define store(p, v) __atomic_store_n(p, v, __ATOMIC_RELEASE)

/* collect takes back frames that were sent, and gives free ones to receive. */
static void collect(struct queue *q)
{
	uint32_t at = *q->done.consumer, end = load(q->done.producer);

	for (; at != end; at++)
		q->free[q->nfree++] = ((uint64_t *)q->done.descs)[at % RING] & ~(uint64_t)(FRAME - 1);
	store(q->done.consumer, at);
	at = *q->fill.producer;
	for (end = load(q->fill.consumer) + RING; at != end && q->nfree > 0; at++)
		((uint64_t *)q->fill.descs)[at % RING] = q->free[--q->nfree];
	store(q->fill.producer, at);
}

static void kick(struct queue *q)
{
	if (sendto(q->tx_fd, NULL, 0, MSG_DONTWAIT, NULL, 0) < 0 && errno != EAGAIN && errno != EBUSY && errno != ENOBUFS)
		err(1, "send");
}

static void *run(void *arg)
{
	struct queue *q = arg;
	struct xdp_desc *rx = q->rx.descs, *tx = q->tx.descs;
	cpu_set_t cpu;

	CPU_ZERO(&cpu);
	CPU_SET(q->number, &cpu);
	sched_setaffinity(0, sizeof cpu, &cpu);
	for (;;) {
		uint32_t at = *q->rx.consumer, n = load(q->rx.producer) - at, to = *q->tx.producer, room = RING - (to - load(q->tx.consumer)), sent = 0;

		if (n == 0) {
			struct pollfd p = { .fd = q->rx_fd, .events = POLLIN };
			if (room < RING)
				kick(q); /* what did not fit the budget before */
			collect(q);
			poll(&p, 1, room < RING ? 0 : 100);
			continue;
		}
		if (n > BATCH)
			n = BATCH;
		for (uint32_t i = 0; i < n; i++) {
			struct xdp_desc d = rx[(at + i) % RING];
			uint32_t len = forward(q->umem + d.addr, d.len);
			if (len == 0 || sent == room) {
				q->free[q->nfree++] = d.addr & ~(uint64_t)(FRAME - 1);
				continue;
			}
			tx[(to + sent++) % RING] = (struct xdp_desc){ .addr = d.addr, .len = len };
		}
		store(q->rx.consumer, at + n);
		store(q->tx.producer, to + sent);
		if (sent > 0)
			kick(q);
		collect(q);
	}
	return NULL;
}

int main(int argc, char **argv)
{
	struct rlimit all = { RLIM_INFINITY, RLIM_INFINITY };
	struct queue *queues;
	int n;

	if (argc != 6 || (n = atoi(argv[3])) < 1 || (in_port = if_nametoindex(argv[1])) == 0 || (out_port = if_nametoindex(argv[2])) == 0)
		errx(2, "usage: xskfwd IN OUT QUEUES FROM-MAC TO-MAC");
	for (int i = 0; i < 2; i++) {
		uint8_t *m = head + 6 * (1 - i);
		if (sscanf(argv[4 + i], "%hhx:%hhx:%hhx:%hhx:%hhx:%hhx", m, m + 1, m + 2, m + 3, m + 4, m + 5) != 6)
			errx(2, "%s: not a MAC address", argv[4 + i]);
	}
	setrlimit(RLIMIT_MEMLOCK, &all);
	queues = calloc(n, sizeof *queues);
	for (int i = 0; i < n; i++) {
		struct queue *q = &queues[i];
		q->number = i;
		q->umem = mmap(NULL, (size_t)FRAMES * FRAME, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
		if (q->umem == MAP_FAILED)
			err(1, "UMEM");
		for (unsigned f = 0; f < FRAMES; f++)
			q->free[q->nfree++] = (uint64_t)f * FRAME;
		q->rx_fd = open_socket(q, in_port, -1);
		q->tx_fd = open_socket(q, out_port, q->rx_fd);
		collect(q);
	}
	attach(queues, n);
	puts("ready");
	fflush(stdout);
	for (int i = 0; i < n; i++) {
		pthread_t t;
		if (pthread_create(&t, NULL, run, &queues[i]) != 0)
			errx(1, "no thread");
	}
	pause();
	return 0;
}
