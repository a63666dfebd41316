/*
 * step does in C what dataplane.Worker.Step does in Go: the same checks in the
 * same order, the same rewrite, rings and counters, over the same frames and
 * with tables that give the same answers. It is the yardstick of Step.
 *
 * Frames of several slots, hosts, VLANs, neighbors to be verified and hand-offs
 * between workers are left out: the benchmark has none. Tables are those of a plain C forwarder: DIR-24-8 of
 * 16-bit entries for IPv4, a trie of 24, 8, 8, ... bits for IPv6.
 *
 *	step CASE
 *
 * reads what the driver wrote about one case, then lines from standard input:
 * "run N" handles at least N packets in batches and prints the nanoseconds that a
 * packet took in the median batch, "once FILE" handles every frame once and writes what was
 * sent and counted to FILE. Numbers in files are little-endian, as the machines
 * are that this is for.
 */
#define _GNU_SOURCE
#include <err.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#define likely(x) __builtin_expect(!!(x), 1)
#define unlikely(x) __builtin_expect(!!(x), 0)

/* Of one side of a ring: published to the other, and read from it. */
#define publish(p, v) __atomic_store_n(p, v, __ATOMIC_RELEASE)
#define observe(p) __atomic_load_n(p, __ATOMIC_ACQUIRE)

enum { ETH = 14, VLAN = 4, IP4 = 20, IP6 = 40 };
enum { FLAG_MORE = 1, FLAG_IPV6 = 1 << 8 };
enum { TYPE_IPV4 = 0x0800, TYPE_ARP = 0x0806, TYPE_VLAN = 0x8100, TYPE_IPV6 = 0x86dd, TYPE_QINQ = 0x88a8 };

/* Drop reasons and punt kinds, numbered as in dataplane/reason.go. */
enum {
	TRUNCATED = 1, BAD_HEADER, BAD_CHECKSUM, BAD_OPTIONS, SOURCE_ROUTE, IP_OPTION, NOT_OUR_MAC, L2_BROADCAST, ETHERTYPE,
	VLAN_UNKNOWN, TTL, MARTIAN, LINK_LOCAL, MULTICAST, NO_ROUTE, BLACKHOLE, REJECT, NO_NEIGHBOR, TOO_BIG, OVERSIZE, LINK_DOWN, TX_FULL,
	ROUTER_ALERT, BAD_EXT, PUNT_FULL, HOST_FULL, HOST_ROUTE, HOST_TOO_BIG, URPF, INTERNAL, REASONS
};
enum {
	PUNT_ARP, PUNT_ND, PUNT_LOCAL, PUNT_TTL, PUNT_TOO_BIG, PUNT_UNREACHABLE, PUNT_FRAGMENT, PUNT_BAD_OPTION, PUNT_NEIGHBOR, KINDS
};
enum { FORWARD4 = 0x80, FORWARD6 = 0x81, PUNT = 0x40 };

/* Counters, numbered as in dataplane/stats.go. */
enum {
	C_PACKETS, C_BYTES, C_FORWARDED, C_TO_HOST = 4, C_FROM_HOST, C_PUNTED, C_DROPPED = C_PUNTED + KINDS, C_LIMITED = C_DROPPED + REASONS,
	COUNTS = C_LIMITED + 2
};

/* Limits and rings of what is punted: dataplane/state.go, punt.go, ring.go. */
enum { LIMIT_ERRORS, LIMIT_LOCAL, LIMIT_FRAGMENTS, LIMITS, NO_LIMIT = LIMITS };
enum { RING_PROTOCOLS, RING_LOCAL, RING_FAULTY, RING_TOO_BIG, RING_UNKNOWN, RINGS };
enum { PUNT_LEN = 64, UNKNOWN_LEN = 512, UNKNOWN_SOURCES = 64, UNKNOWN_EVERY = 1000000, UNKNOWN_BURST = UNKNOWN_LEN / 2 };

enum { A_NO_ROUTE, A_FORWARD, A_LOCAL, A_BROADCAST, A_GLEAN, A_RESOLVE, A_BLACKHOLE, A_REJECT };

struct slot {
	uint32_t buf;
	uint16_t off, len;
	uint32_t flags;
};

struct adj {
	uint8_t action, family, head_len, pad1;
	uint16_t port, mtu;
	uint8_t head[18];
	uint16_t out;
	uint8_t pad2[4], neighbor[16], pad3[16];
} __attribute__((aligned(64)));

struct port {
	uint64_t mac;
	uint64_t macs[4];
	unsigned nmacs;
	unsigned mtu, number, up;
	uint64_t link_local[2];
	int64_t every[LIMITS];
};

/* A ring as in dataplane/memport: slots from head to tail are full. */
struct ring {
	struct slot *slots;
	uint32_t mask, size, cur;
	uint32_t tail __attribute__((aligned(64)));
	uint32_t head __attribute__((aligned(64)));
	uint64_t full;
};

struct tally {
	uint64_t v[COUNTS], dirty;
	uint64_t pub[COUNTS] __attribute__((aligned(64)));
} __attribute__((aligned(64)));

struct outlet {
	struct ring *tx;
	struct slot *slots;
	unsigned n, v6, bytes, min_frame;
	uint64_t tx_packets, tx_bytes, tx_full;
};

struct punts {
	uint32_t tail __attribute__((aligned(64)));
	uint32_t head __attribute__((aligned(64)));
	struct {
		uint8_t kind, family, neighbor[16];
		uint16_t port, out, len;
		uint8_t data[2048];
	} entries[UNKNOWN_LEN];
};

/* What an ingress queue may still punt: each holds the time at which it is full. */
struct buckets {
	int64_t limits[LIMITS][2], unknown[UNKNOWN_SOURCES];
};

enum { PORTS = 2, MAX_BURST = 1024, ROUNDS = 200, BATCH = 4096 };
enum { LOOP, REPEAT, ONCE };

struct state {
	uint64_t gen;
	const struct adj *adj;
	const uint16_t *root4, *low4;
	const uint32_t *root6, *low6;
	struct port ports[PORTS];
};

static struct worker {
	struct state *state;
	uint64_t gen, seen;
	unsigned burst;
	struct ring rx[PORTS], tx[PORTS], inject;
	struct tally in[PORTS];
	struct outlet out[PORTS];
	struct buckets buckets[PORTS];
	struct punts punts[RINGS];
	int64_t now;
	uint32_t *free;
	unsigned nfree, ntouched, touched[PORTS];
	struct slot *slots;
	uint64_t batch[10], batch_sum;
	uint8_t *mem;
	size_t stride;
	uint8_t special4[256], special6[256];
	/* the loop */
	unsigned mode, nframes, first;
	uint32_t pos;
	int64_t left;
	uint8_t **frames;
	uint16_t *lens;
} w;

static inline uint16_t be16(const uint8_t *p) { uint16_t v; memcpy(&v, p, 2); return __builtin_bswap16(v); }
static inline uint32_t be32(const uint8_t *p) { uint32_t v; memcpy(&v, p, 4); return __builtin_bswap32(v); }
static inline uint64_t be64(const uint8_t *p) { uint64_t v; memcpy(&v, p, 8); return __builtin_bswap64(v); }
static inline uint32_t le32(const uint8_t *p) { uint32_t v; memcpy(&v, p, 4); return v; }
static inline uint16_t le16(const uint8_t *p) { uint16_t v; memcpy(&v, p, 2); return v; }
static inline void put16(uint8_t *p, uint16_t v) { v = __builtin_bswap16(v); memcpy(p, &v, 2); }

/* The Internet checksum (RFC 1071, RFC 1624). */

static inline uint16_t sum20(const uint8_t *h)
{
	uint64_t s = (uint64_t)le32(h) + le32(h + 4) + le32(h + 8) + le32(h + 12) + le32(h + 16);

	s = (s & 0xffffffff) + (s >> 32);
	s = (s & 0xffff) + (s >> 16 & 0xffff) + (s >> 32);
	return s + (s >> 16);
}

static uint16_t checksum(const uint8_t *b, unsigned n)
{
	uint32_t s = 0;

	for (; n >= 2; b += 2, n -= 2)
		s += be16(b);
	while (s > 0xffff)
		s = (s & 0xffff) + (s >> 16);
	return ~s;
}

static inline void decrement_ttl(uint8_t *ip)
{
	uint32_t s = (uint16_t)~be16(ip + 10) + 0xfeffu;

	ip[8]--;
	put16(ip + 10, ~(s + (s >> 16)));
}

/* Options: IPv4 (RFC 791, 3.1) and hop-by-hop (RFC 8200, 4.3). 0 means go on. */

/* Options that RFC 7126 advises to drop, in words of 32. */
static const uint32_t filtered[8] = {1 << 7 | 1 << 11 | 1 << 12, 0, 1 << 68 % 32 | 1 << 82 % 32, 0, 1 << 136 % 32 | 1 << 142 % 32 | 1 << 145 % 32 | 1 << 147 % 32 | 1 << 149 % 32 | 1 << 151 % 32 | 1 << 152 % 32};

static unsigned options4(const uint8_t *b, unsigned n, unsigned *filter)
{
	unsigned source_route = 0, alert = 0;

	for (unsigned i = 0; i < n && b[i] != 0;) {
		if (b[i] == 1) {
			i++;
			continue;
		}
		if (i + 1 >= n || b[i + 1] < 2 || i + b[i + 1] > n)
			return BAD_OPTIONS;
		if (b[i] == 131 || b[i] == 137)
			source_route = 1;
		if (b[i] == 148) {
			if (b[i + 1] != 4)
				return BAD_OPTIONS;
			alert = 1;
		}
		*filter |= filtered[b[i] / 32] >> b[i] % 32 & 1;
		i += b[i + 1];
	}
	return source_route ? SOURCE_ROUTE : alert ? ROUTER_ALERT : 0;
}

static unsigned hop_by_hop(const uint8_t *ip, unsigned n)
{
	unsigned total = IP6 + be16(ip + 4), alert = 0;
	const uint8_t *b = ip + IP6;

	n = (total < n ? total : n) - IP6;
	if (n < 8 || (b[1] + 1u) * 8 > n)
		return BAD_EXT;
	n = (b[1] + 1u) * 8;
	for (unsigned i = 2; i < n;) {
		if (b[i] == 0) {
			i++;
			continue;
		}
		if (i + 1 >= n || i + 2 + b[i + 1] > n || b[i] == 0xc2 || (b[i] == 5 && b[i + 1] != 2))
			return BAD_EXT;
		alert |= b[i] == 5;
		i += 2 + b[i + 1];
	}
	return alert ? ROUTER_ALERT : 0;
}

static int is_nd(const uint8_t *ip, unsigned n)
{
	return ip[6] == 58 && n > IP6 && ip[IP6] >= 133 && ip[IP6] <= 137;
}

/* The gates: RFC 1812, 5.2.2; RFC 8200, 3. */

static inline unsigned check_ipv4(const uint8_t *b, unsigned n)
{
	unsigned total, h;

	if (unlikely(n < IP4))
		return TRUNCATED;
	total = be16(b + 2);
	if (likely(b[0] == 0x45)) {
		if (unlikely(total < IP4))
			return BAD_HEADER;
		if (unlikely(total > n))
			return TRUNCATED;
		return likely(sum20(b) == 0xffff) ? 0 : BAD_CHECKSUM;
	}
	h = (b[0] & 15) * 4;
	if (b[0] >> 4 != 4 || h < IP4 || total < h)
		return BAD_HEADER;
	if (total > n)
		return TRUNCATED;
	return checksum(b, h) == 0 ? 0 : BAD_CHECKSUM;
}

static inline unsigned check_ipv6(const uint8_t *b, unsigned n)
{
	if (unlikely(n < IP6))
		return TRUNCATED;
	if (unlikely(b[0] >> 4 != 6))
		return BAD_HEADER;
	return likely(be16(b + 4) <= n - IP6) ? 0 : TRUNCATED;
}

/* Addresses that must not be forwarded (RFC 6890; RFC 1812, 5.3.7; RFC 4291). */

static unsigned check4(uint32_t src, uint32_t dst, unsigned *link_local)
{
	if (dst >> 28 == 0xe)
		return MULTICAST;
	if (dst >> 24 == 0 || dst >> 24 == 127 || dst >> 28 == 0xf || src >> 24 == 0 || src >> 24 == 127 || src >> 28 >= 0xe)
		return MARTIAN;
	*link_local = src >> 16 == 0xa9fe || dst >> 16 == 0xa9fe;
	return 0;
}

static int martian6(uint64_t hi, uint64_t lo) { return hi == 0 && (lo <= 1 || lo >> 32 == 0xffff); }

static unsigned check6(const struct port *port, const uint8_t *ip, unsigned n, unsigned *link_local)
{
	uint64_t sh = be64(ip + 8), sl = be64(ip + 16), dh = be64(ip + 24), dl = be64(ip + 32);

	if (dh >> 56 == 0xff)
		return is_nd(ip, n) ? PUNT + PUNT_ND : MULTICAST;
	if (martian6(dh, dl) || martian6(sh, sl) || sh >> 56 == 0xff)
		return MARTIAN;
	if (dh >> 54 == 0xfe80 >> 6) {
		if (dh != port->link_local[0] || dl != port->link_local[1])
			return LINK_LOCAL;
		return is_nd(ip, n) ? PUNT + PUNT_ND : PUNT + PUNT_LOCAL;
	}
	*link_local = sh >> 54 == 0xfe80 >> 6;
	return 0;
}

/* Lookups. */

static inline uint32_t lookup4(const struct state *st, uint32_t dst)
{
	uint32_t e = st->root4[dst >> 8];

	return likely(e < 0x8000) ? e : st->low4[(e & 0x7fff) << 8 | (dst & 255)];
}

static inline uint32_t lookup6(const struct state *st, uint64_t hi, uint64_t lo)
{
	uint32_t e = st->root6[hi >> 40];
	int shift = 32;

	for (; (int32_t)e < 0 && shift >= 0; shift -= 8)
		e = st->low6[(e & 0x7fffffff) << 8 | (hi >> shift & 255)];
	for (shift = 56; (int32_t)e < 0; shift -= 8)
		e = st->low6[(e & 0x7fffffff) << 8 | (lo >> shift & 255)];
	return e;
}

/* What becomes of a packet. */

static unsigned end(const struct adj *a, unsigned link_local, unsigned ttl, unsigned n)
{
	if (a->action == A_LOCAL)
		return PUNT + PUNT_LOCAL;
	if (link_local)
		return LINK_LOCAL;
	switch (a->action) {
	case A_BROADCAST: return MARTIAN;
	case A_NO_ROUTE: return NO_ROUTE;
	case A_BLACKHOLE: return BLACKHOLE;
	case A_REJECT: return REJECT;
	}
	return ttl <= 1 ? TTL : n > a->mtu ? TOO_BIG : NO_NEIGHBOR;
}

static unsigned other_type(unsigned type)
{
	if (type == TYPE_ARP)
		return PUNT + PUNT_ARP;
	return type == TYPE_VLAN || type == TYPE_QINQ ? VLAN_UNKNOWN : ETHERTYPE;
}

static unsigned not_ours(unsigned type, const uint8_t *b, unsigned n, uint64_t dst)
{
	unsigned v;

	if ((dst & 1) == 0)
		return NOT_OUR_MAC;
	switch (type) {
	case TYPE_IPV4:
		if ((v = check_ipv4(b, n)) != 0)
			return v;
		return b[16] >> 4 == 0xe ? MULTICAST : L2_BROADCAST;
	case TYPE_IPV6:
		if ((v = check_ipv6(b, n)) != 0)
			return v;
		if (b[6] == 0 && (v = hop_by_hop(b, n)) != 0)
			return v;
		if (b[24] != 0xff)
			return L2_BROADCAST;
		return is_nd(b, n) ? PUNT + PUNT_ND : MULTICAST;
	}
	return other_type(type);
}

static inline unsigned decide4(const struct state *st, const struct port *port, const uint8_t *b, unsigned n, const struct adj **out)
{
	unsigned v = check_ipv4(b, n), total, link_local = 0, filter = 0;
	const struct adj *a;

	if (unlikely(v != 0))
		return v;
	total = be16(b + 2);
	if (unlikely(total > port->mtu))
		return OVERSIZE;
	if (unlikely(b[0] != 0x45) && (v = options4(b + IP4, (b[0] & 15) * 4 - IP4, &filter)) != 0)
		return v;
	if (unlikely(w.special4[b[12]] | w.special4[b[16]]) && (v = check4(be32(b + 12), be32(b + 16), &link_local)) != 0)
		return v;
	a = &st->adj[lookup4(st, be32(b + 16))];
	if (unlikely(filter) && a->action != A_LOCAL && a->action != A_BROADCAST)
		return IP_OPTION;
	if (unlikely(a->action != A_FORWARD || link_local)) {
		*out = a;
		return end(a, link_local, b[8], total);
	}
	if (unlikely(b[8] <= 1))
		return TTL;
	if (unlikely(total > a->mtu))
		return TOO_BIG;
	*out = a;
	return FORWARD4;
}

static inline unsigned decide6(const struct state *st, const struct port *port, const uint8_t *b, unsigned n, const struct adj **out)
{
	unsigned v = check_ipv6(b, n), total, link_local = 0;
	const struct adj *a;

	if (unlikely(v != 0))
		return v;
	total = IP6 + be16(b + 4);
	if (unlikely(total > port->mtu))
		return OVERSIZE;
	if (unlikely(b[6] == 0) && (v = hop_by_hop(b, n)) != 0)
		return v;
	if (unlikely(w.special6[b[8]] | w.special6[b[24]]) && (v = check6(port, b, n, &link_local)) != 0)
		return v;
	a = &st->adj[lookup6(st, be64(b + 24), be64(b + 32))];
	if (unlikely(a->action != A_FORWARD || link_local)) {
		if (a->action == A_LOCAL && is_nd(b, n))
			return PUNT + PUNT_ND;
		*out = a;
		return end(a, link_local, b[7], total);
	}
	if (unlikely(b[7] <= 1))
		return TTL;
	if (unlikely(total > a->mtu))
		return TOO_BIG;
	*out = a;
	return FORWARD6;
}

static int ours(const struct port *port, uint64_t mac)
{
	for (unsigned i = 0; i < port->nmacs; i++)
		if (port->macs[i] == mac)
			return 1;
	return 0;
}

/*
 * *head is the length of the Ethernet header, with a tag of VLAN 0, which says a
 * priority only (IEEE 802.1Q, 6.9).
 */
static inline unsigned decide(const struct state *st, const struct port *port, const uint8_t *p, unsigned n, unsigned *head, const struct adj **a)
{
	unsigned type;
	uint64_t dst;

	*head = ETH;
	if (unlikely(n < ETH))
		return TRUNCATED;
	memcpy(&dst, p, 8);
	dst &= 0xffffffffffff;
	type = be16(p + 12);
	if (unlikely(type == TYPE_VLAN) && n >= ETH + VLAN && (be16(p + 14) & 0xfff) == 0) {
		*head = ETH + VLAN;
		type = be16(p + 16);
	}
	if (unlikely(dst != port->mac) && !ours(port, dst))
		return not_ours(type, p + *head, n - *head, dst);
	if (unlikely(n > port->mtu + ETH + VLAN))
		return OVERSIZE;
	switch (type) {
	case TYPE_IPV4: return decide4(st, port, p + *head, n - *head, a);
	case TYPE_IPV6: return decide6(st, port, p + *head, n - *head, a);
	}
	return other_type(type);
}

/* Counters. */

static inline void add(struct tally *t, unsigned c, uint64_t n)
{
	t->v[c] += n;
	t->dirty |= 1ull << c;
}

static inline void publish_tally(struct tally *t)
{
	for (uint64_t m = t->dirty; m != 0; m &= m - 1) {
		unsigned c = __builtin_ctzll(m);
		publish(&t->pub[c], t->v[c]);
	}
	t->dirty = 0;
}

/* Rings. */

static void restore(struct ring *r, unsigned n)
{
	w.left -= n;
	if (w.left > 0 || observe(&r->tail) - r->cur != w.nframes)
		return;
	w.left = (int64_t)ROUNDS * w.nframes;
	w.first = (w.first + (r->cur - w.pos)) % w.nframes;
	w.pos = r->cur;
	for (unsigned i = 0; i < w.nframes; i++) {
		struct slot *s = &r->slots[(r->cur + i) & r->mask];
		unsigned f = (w.first + i) % w.nframes;
		s->len = w.lens[f];
		memcpy(w.mem + s->buf * w.stride + s->off, w.frames[f], s->len);
	}
}

static unsigned recv(struct ring *r, struct slot *s, unsigned max)
{
	uint32_t n, at = r->cur & r->mask, first;

	if (w.mode == LOOP && r == &w.rx[0])
		restore(r, max);
	n = observe(&r->tail) - r->cur;
	if (n > max)
		n = max;
	first = r->mask + 1 - at;
	if (first > n)
		first = n;
	memcpy(s, r->slots + at, first * sizeof *s);
	memcpy(s + first, r->slots, (n - first) * sizeof *s);
	r->cur += n;
	return n;
}

static void release(struct ring *r, const uint32_t *bufs, unsigned n)
{
	uint32_t head = r->head;

	for (unsigned i = 0; i < n; i++)
		r->slots[(head + r->size + i) & r->mask].buf = bufs[i];
	publish(&r->head, head + n);
	if (w.mode == REPEAT)
		publish(&r->tail, r->tail + n);
}

static unsigned send(struct ring *r, struct slot *s, unsigned n)
{
	uint32_t tail = r->tail, free = r->size - (tail - observe(&r->head));

	if (unlikely(n > free)) {
		r->full += n - free;
		n = free;
	}
	for (unsigned i = 0; i < n; i++) {
		struct slot *d = &r->slots[(tail + i) & r->mask], f = s[i];
		s[i].buf = d->buf;
		f.flags &= FLAG_MORE;
		*d = f;
	}
	publish(&r->tail, tail + n);
	return n;
}

/* The worker. */

/* take takes a token of a bucket, if there is one: ITU-T I.371. */
static int take(int64_t *bucket, int64_t every, int64_t burst)
{
	int64_t full = *bucket;

	if (full < w.now)
		full = w.now;
	if (full > w.now + burst * every)
		full = w.now + burst * every;
	if (full - w.now > (burst - 1) * every)
		return 0;
	*bucket = full + every;
	return 1;
}

/*
 * put copies a frame without its tag to control. The neighbor that it waits for
 * is that of a, if any, or its destination.
 */
static int put(unsigned ring, unsigned kind, unsigned port, const struct adj *a, const uint8_t *p, unsigned n, unsigned head)
{
	struct punts *r = &w.punts[ring];
	uint32_t tail = r->tail, len = ring == RING_UNKNOWN ? UNKNOWN_LEN : PUNT_LEN, i = tail % len;
	unsigned rest = n - (head - 2);

	if (tail - observe(&r->head) == len)
		return 0;
	r->entries[i].kind = kind;
	r->entries[i].port = port;
	r->entries[i].family = 0;
	if (a != NULL) {
		static const uint8_t none[16];
		r->entries[i].family = a->family;
		r->entries[i].out = a->port;
		memcpy(r->entries[i].neighbor, a->neighbor, 16);
		if (memcmp(a->neighbor, none, 16) == 0)
			memcpy(r->entries[i].neighbor, p + head + (a->family == 4 ? 16 : 24), a->family == 4 ? 4 : 16);
	}
	if (rest > sizeof r->entries[i].data - 12)
		rest = sizeof r->entries[i].data - 12;
	r->entries[i].len = 12 + rest;
	memcpy(r->entries[i].data, p, 12);
	memcpy(r->entries[i].data + 12, p + head - 2, rest);
	publish(&r->tail, tail + 1);
	return 1;
}

static const uint8_t punt_rings[KINDS] = {
	[PUNT_LOCAL] = RING_LOCAL, [PUNT_TTL] = RING_FAULTY, [PUNT_TOO_BIG] = RING_FAULTY, [PUNT_UNREACHABLE] = RING_FAULTY,
	[PUNT_BAD_OPTION] = RING_FAULTY, [PUNT_FRAGMENT] = RING_TOO_BIG, [PUNT_NEIGHBOR] = RING_UNKNOWN,
};

static const uint8_t limits[KINDS] = {
	[PUNT_ARP] = NO_LIMIT, [PUNT_ND] = NO_LIMIT, [PUNT_LOCAL] = LIMIT_LOCAL,
	[PUNT_TTL] = LIMIT_ERRORS, [PUNT_TOO_BIG] = LIMIT_ERRORS, [PUNT_UNREACHABLE] = LIMIT_ERRORS, [PUNT_BAD_OPTION] = LIMIT_ERRORS,
	[PUNT_FRAGMENT] = LIMIT_FRAGMENTS, [PUNT_NEIGHBOR] = NO_LIMIT,
};

static const int64_t limit_bursts[LIMITS] = { [LIMIT_ERRORS] = 10, [LIMIT_LOCAL] = PUNT_LEN / 2, [LIMIT_FRAGMENTS] = PUNT_LEN };

static int punt_to(const struct port *port, struct tally *t, unsigned kind, const uint8_t *p, unsigned n, unsigned head)
{
	unsigned l = limits[kind], family = 0;
	int ok = 1;

	if (l != NO_LIMIT) {
		family = p[head] >> 5 & 1;
		if (port->every[l] == 0)
			return 0;
		ok = take(&w.buckets[port->number].limits[l][family], port->every[l], limit_bursts[l]);
	}
	if (!ok || !put(punt_rings[kind], kind, port->number, NULL, p, n, head)) {
		if (l == LIMIT_ERRORS)
			add(t, C_LIMITED + family, 1);
		return 0;
	}
	add(t, C_PUNTED + kind, 1);
	return 1;
}

static unsigned source_of(const uint8_t *ip)
{
	uint64_t n = ip[0] >> 4 == 6 ? be64(ip + 8) : be32(ip + 12);

	return (uint32_t)(n * 0x9e3779b97f4a7c15 >> 32) % UNKNOWN_SOURCES;
}

static int punt_unknown(const struct port *port, struct tally *t, const struct adj *a, const uint8_t *p, unsigned n, unsigned head)
{
	if (!take(&w.buckets[port->number].unknown[source_of(p + head)], UNKNOWN_EVERY, UNKNOWN_BURST) ||
	    !put(RING_UNKNOWN, PUNT_NEIGHBOR, port->number, a, p, n, head))
		return 0;
	add(t, C_PUNTED + PUNT_NEIGHBOR, 1);
	return 1;
}

/* fault_kind says as what a dropped packet is punted, KINDS for not at all. */
static unsigned fault_kind(unsigned v, const uint8_t *ip)
{
	switch (v) {
	case TTL: return PUNT_TTL;
	case TOO_BIG: return ip[0] >> 4 == 4 && (ip[6] & 0x40) == 0 ? PUNT_FRAGMENT : PUNT_TOO_BIG;
	case NO_ROUTE: case REJECT: return PUNT_UNREACHABLE;
	case BAD_OPTIONS: case BAD_EXT: return PUNT_BAD_OPTION;
	}
	return KINDS;
}

static void divert(const struct port *port, struct tally *t, unsigned v, const struct adj *a, const uint8_t *p, unsigned head, const struct slot *s)
{
	unsigned kind;

	if (v & PUNT) {
		if (!punt_to(port, t, v & ~PUNT, p, s->len, head))
			add(t, C_DROPPED + PUNT_FULL, 1);
	} else if (v == NO_NEIGHBOR) {
		if (!punt_unknown(port, t, a, p, s->len, head))
			add(t, C_DROPPED + v, 1);
	} else {
		kind = fault_kind(v, p + head);
		if (kind == KINDS || !punt_to(port, t, kind, p, s->len, head))
			add(t, C_DROPPED + v, 1);
	}
	w.free[w.nfree++] = s->buf;
}

static void forward(const struct state *st, unsigned in, struct slot *s, unsigned n)
{
	const struct port *port = &st->ports[in];
	struct tally *t = &w.in[in];
	uint8_t *const mem = w.mem;
	const size_t stride = w.stride;
	uint64_t bytes = 0;

	for (unsigned i = 0; i < n; i++) {
		uint8_t *p = mem + s[i].buf * stride + s[i].off;
		const struct adj *a = st->adj;
		struct outlet *o;
		unsigned v, len, head;

		if (unlikely(s[i].flags & FLAG_MORE))
			errx(1, "frames of several slots are not part of the benchmark");
		bytes += s[i].len;
		v = decide(st, port, p, s[i].len, &head, &a);
		if (unlikely(v < FORWARD4)) {
			divert(port, t, v, a, p, head, &s[i]);
			continue;
		}
		if (unlikely(head != ETH)) {
			p += VLAN;
			s[i].off += VLAN;
		}
		o = &w.out[a->out];
		memcpy(p, a->head, ETH);
		if (v == FORWARD4) {
			decrement_ttl(p + ETH);
			len = ETH + be16(p + ETH + 2);
		} else {
			p[ETH + 7]--;
			len = ETH + IP6 + be16(p + ETH + 4);
		}
		if (unlikely(len < o->min_frame)) {
			unsigned room = stride - s[i].off, least = o->min_frame < room ? o->min_frame : room;
			memset(p + len, 0, least - len);
			len = least;
		}
		if (o->n == 0)
			w.touched[w.ntouched++] = a->out;
		o->slots[o->n++] = (struct slot){ s[i].buf, s[i].off, len, (v & 1) * FLAG_IPV6 };
		o->v6 += v & 1;
		o->bytes += len;
	}
	add(t, C_PACKETS, n);
	add(t, C_BYTES, bytes);
}

static void flush(const struct state *st, unsigned in, unsigned out)
{
	struct outlet *o = &w.out[out];
	struct tally *t = &w.in[in];
	unsigned n = o->n, v6 = o->v6, bytes = o->bytes, sent = 0, reason = TX_FULL;

	o->n = o->v6 = o->bytes = 0;
	if (unlikely(!st->ports[out].up)) {
		reason = LINK_DOWN;
	} else {
		sent = send(o->tx, o->slots, n);
		for (unsigned i = sent; i < n; i++) {
			v6 -= o->slots[i].flags / FLAG_IPV6 & 1;
			bytes -= o->slots[i].len;
		}
		if (sent > v6)
			add(t, C_FORWARDED, sent - v6);
		if (v6 > 0)
			add(t, C_FORWARDED + 1, v6);
		publish(&o->tx_packets, o->tx_packets + sent);
		publish(&o->tx_bytes, o->tx_bytes + bytes);
	}
	if (unlikely(sent < n))
		add(t, C_DROPPED + reason, n - sent);
	for (unsigned i = 0; i < n; i++)
		w.free[w.nfree++] = o->slots[i].buf;
}

static unsigned receive(const struct state *st, unsigned in)
{
	unsigned n = recv(&w.rx[in], w.slots, w.burst), b;

	if (n == 0)
		return 0;
	forward(st, in, w.slots, n);
	for (unsigned i = 0; i < w.ntouched; i++)
		flush(st, in, w.touched[i]);
	w.ntouched = 0;
	release(&w.rx[in], w.free, w.nfree);
	w.nfree = 0;
	b = n > 1 ? 32 - __builtin_clz(n - 1) : 0;
	if (b > 9)
		b = 9;
	publish(&w.batch[b], w.batch[b] + 1);
	publish(&w.batch_sum, w.batch_sum + n);
	return n;
}

static unsigned step(int64_t now)
{
	const struct state *st = observe(&w.state);
	unsigned n = 0;

	w.now = now;
	if (st->gen != w.gen) {
		w.gen = st->gen;
		publish(&w.seen, w.gen);
	}
	if (observe(&w.inject.tail) != observe(&w.inject.head))
		errx(1, "nothing is injected in the benchmark");
	for (unsigned i = 0; i < PORTS; i++)
		n += receive(st, i);
	if (n > 0)
		for (unsigned i = 0; i < PORTS; i++)
			publish_tally(&w.in[i]);
	return n;
}

/* The case. */

static const uint8_t *in;

static uint64_t number(void)
{
	uint64_t v;

	memcpy(&v, in, 8);
	in += 8;
	return v;
}

static void *memory(size_t n, int huge)
{
	uint8_t *p = mmap(NULL, n + (2 << 20), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (p == MAP_FAILED)
		err(1, "%zu bytes", n);
	p += -(uintptr_t)p & ((2 << 20) - 1);
	madvise(p, n, huge ? MADV_HUGEPAGE : MADV_NOHUGEPAGE);
	return p;
}

/* A span is a range of addresses with one adjacency: up to the next span. */
struct span { uint64_t hi, lo, adj; };

static void build4(struct state *st, const struct span *s, size_t n)
{
	uint16_t *root = memory(2 << 24, 1), *low = memory(2ul << 23, 1);
	size_t at = 0, chunks = 0;

	for (uint64_t i = 0; i < 1 << 24; i++) {
		while (at + 1 < n && s[at + 1].hi <= i << 8)
			at++;
		if (at + 1 == n || s[at + 1].hi >= (i + 1) << 8) {
			root[i] = s[at].adj;
			continue;
		}
		if (chunks == 0x8000)
			errx(1, "more chunks than a 16-bit entry can name");
		for (unsigned k = 0; k < 256; k++) {
			while (at + 1 < n && s[at + 1].hi <= (i << 8 | k))
				at++;
			low[chunks << 8 | k] = s[at].adj;
		}
		root[i] = 0x8000 | chunks++;
	}
	st->root4 = root;
	st->low4 = low;
}

static uint32_t *low6;
static size_t chunks6;
enum { MAX_CHUNKS6 = 1 << 20 };

/* starts_after reports whether s starts behind the prefix of address hi, lo. */
static int starts_after(const struct span *s, uint64_t hi, uint64_t lo, unsigned bits)
{
	uint64_t mh = bits >= 64 ? 0 : ~0ull >> bits, ml = bits <= 64 ? ~0ull : bits == 128 ? 0 : ~0ull >> (bits - 64);

	return s->hi > (hi | mh) || (s->hi == (hi | mh) && s->lo > (lo | ml));
}

/* entry6 returns the entry for the prefix of address hi, lo; *s holds at its start. */
static uint32_t entry6(const struct span **s, const struct span *last, uint64_t hi, uint64_t lo, unsigned bits)
{
	size_t c;

	while (*s < last && ((*s)[1].hi < hi || ((*s)[1].hi == hi && (*s)[1].lo <= lo)))
		++*s;
	if (*s == last || starts_after(*s + 1, hi, lo, bits))
		return (*s)->adj;
	if (chunks6 == MAX_CHUNKS6)
		errx(1, "more than %d chunks", MAX_CHUNKS6);
	c = chunks6++;
	for (uint64_t k = 0; k < 256; k++)
		low6[c << 8 | k] = entry6(s, last, bits < 64 ? hi | k << (56 - bits) : hi, bits < 64 ? lo : lo | k << (120 - bits), bits + 8);
	return 0x80000000 | c;
}

static void build6(struct state *st, const struct span *s, size_t n)
{
	uint32_t *root = memory(4 << 24, 1);
	const struct span *at = s;

	low6 = memory((size_t)MAX_CHUNKS6 << 10, 1);
	for (uint64_t i = 0; i < 1 << 24; i++)
		root[i] = entry6(&at, s + n - 1, i << 40, 0, 24);
	st->root6 = root;
	st->low6 = low6;
}

static void new_ring(struct ring *r, uint32_t size, uint32_t *buf)
{
	uint32_t n = 1;

	while (n < size)
		n *= 2;
	r->slots = memory(n * sizeof *r->slots, 0);
	r->mask = n - 1;
	r->size = size;
	for (uint32_t i = 0; i < size; i++)
		r->slots[i].buf = --*buf;
}

static struct span *spans(size_t n)
{
	struct span *s = malloc(n * sizeof *s);

	for (size_t i = 0; i < n; i++)
		s[i] = (struct span){ number(), number(), number() };
	return s;
}

/* read_case reads what bench/peer.go wrote. */
static void read_case(const char *name)
{
	FILE *f = fopen(name, "rb");
	struct state *st = aligned_alloc(64, (sizeof *st + 63) & ~63ul);
	uint8_t *file;
	uint64_t rx_slots, tx_slots, bufs, huge, n4, n6, nadj;
	uint32_t buf;
	struct adj *adj;
	long size;

	if (f == NULL || fseek(f, 0, SEEK_END) != 0 || (size = ftell(f)) < 0)
		err(1, "%s", name);
	rewind(f);
	in = file = malloc(size);
	if (fread(file, 1, size, f) != (size_t)size)
		err(1, "%s", name);
	fclose(f);

	memset(st, 0, sizeof *st);
	st->gen = 1;
	w.mode = number();
	w.burst = number();
	w.stride = number();
	huge = number();
	bufs = number();
	rx_slots = number();
	tx_slots = number();
	w.mem = memory(bufs * w.stride, huge);
	memset(w.mem, 0, bufs * w.stride);
	buf = bufs;
	for (unsigned i = 0; i < PORTS; i++) {
		struct port *p = &st->ports[i];
		p->number = i;
		p->mac = number();
		p->mtu = number();
		p->up = number();
		w.out[i].min_frame = number();
		for (unsigned l = 0; l < LIMITS; l++)
			p->every[l] = number();
		new_ring(&w.rx[i], i == 0 ? rx_slots : tx_slots, &buf);
		new_ring(&w.tx[i], tx_slots, &buf);
		w.out[i].tx = &w.tx[i];
		w.out[i].slots = malloc(MAX_BURST * sizeof(struct slot));
	}
	if (w.mode == LOOP)
		w.out[1].tx = &w.rx[0];
	w.slots = malloc(MAX_BURST * sizeof(struct slot));
	w.free = malloc(MAX_BURST * sizeof *w.free);
	for (unsigned b = 0; b < 256; b++) {
		w.special4[b] = b == 0 || b == 127 || b == 169 || b >= 224;
		w.special6[b] = b == 0 || b >= 0xfe;
	}

	nadj = number();
	adj = aligned_alloc(64, nadj * sizeof *adj);
	memcpy(adj, in, nadj * sizeof *adj);
	in += nadj * sizeof *adj;
	for (uint64_t i = 0; i < nadj; i++)
		if (adj[i].action > A_REJECT)
			errx(1, "action %u is not part of the benchmark", adj[i].action);
	st->adj = adj;
	n4 = number();
	if (n4 > 0) {
		struct span *s = spans(n4);
		build4(st, s, n4);
		free(s);
	}
	n6 = number();
	if (n6 > 0) {
		struct span *s = spans(n6);
		build6(st, s, n6);
		free(s);
	}

	w.nframes = number();
	w.frames = malloc(w.nframes * sizeof *w.frames);
	w.lens = malloc(w.nframes * sizeof *w.lens);
	for (unsigned i = 0; i < w.nframes; i++) {
		struct slot *s = &w.rx[0].slots[i];
		w.lens[i] = number();
		w.frames[i] = malloc(w.lens[i] + 1);
		memcpy(w.frames[i], in, w.lens[i]);
		in += w.lens[i];
		s->len = w.lens[i];
		memcpy(w.mem + s->buf * w.stride, w.frames[i], s->len);
	}
	w.rx[0].tail = w.nframes;
	w.left = (int64_t)ROUNDS * w.nframes;
	w.state = st;
	free(file);
}

static uint64_t now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000000000ull + t.tv_nsec;
}

static int compare(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

/* run counts on the median: what a batch lost to other programs is not ours. */
static void run(uint64_t n)
{
	uint64_t batches = n / BATCH + 1;
	double *ns = malloc(batches * sizeof *ns);

	for (uint64_t i = 0; i < batches; i++) {
		uint64_t start = now(), packets = 0;
		while (packets < BATCH) {
			unsigned got = step(0);
			if (got == 0)
				errx(1, "nothing received");
			packets += got;
		}
		ns[i] = (double)(now() - start) / packets;
	}
	qsort(ns, batches, sizeof *ns, compare);
	printf("%f\n", ns[batches / 2]);
	fflush(stdout);
	free(ns);
}

static void put64(FILE *f, uint64_t v) { fwrite(&v, 8, 1, f); }

static void once(const char *name)
{
	FILE *f = fopen(name, "wb");

	if (f == NULL)
		err(1, "%s", name);
	while (step(0) > 0)
		for (unsigned i = 0; i < PORTS; i++) {
			struct ring *r = &w.tx[i];
			for (; r->head != r->tail; r->head++) {
				struct slot *s = &r->slots[r->head & r->mask];
				r->slots[(r->head + r->size) & r->mask].buf = s->buf;
				put64(f, i);
				put64(f, s->len);
				fwrite(w.mem + s->buf * w.stride + s->off, 1, s->len, f);
			}
		}
	put64(f, PORTS);
	for (unsigned i = 0; i < COUNTS; i++)
		put64(f, w.in[0].pub[i]);
	for (unsigned i = 0; i < PORTS; i++) {
		put64(f, w.out[i].tx_packets);
		put64(f, w.out[i].tx_bytes);
	}
	if (fclose(f) != 0)
		err(1, "%s", name);
	puts("ok");
	fflush(stdout);
}

int main(int argc, char **argv)
{
	char line[4096], name[4096];
	uint64_t n;

	if (argc != 2)
		errx(2, "usage: step CASE");
	read_case(argv[1]);
	while (fgets(line, sizeof line, stdin) != NULL) {
		if (sscanf(line, "run %lu", &n) == 1)
			run(n);
		else if (sscanf(line, "once %4095[^\n]", name) == 1)
			once(name);
		else
			errx(2, "unknown command: %s", line);
	}
	return 0;
}
