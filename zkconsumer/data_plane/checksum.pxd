# The compiled way of checksum.py. On x86-64 the processor has an instruction for it, if it is younger than 2008.
from libc.stdint cimport uint32_t


cdef extern from *:
    """
    #include <stddef.h>
    #include <stdint.h>
    #include <string.h>

    static uint32_t zk_sums[8][256];   /* the sum of a byte that 0 to 7 zero bytes follow */
    static uint32_t zk_moved[4][256];  /* each byte of a sum, moved on over ZK_BLOCK zero bytes */
    #define ZK_BLOCK 1024

    static uint32_t zk_sum_by_table(uint32_t sum, const unsigned char *data, size_t size) {
        for (; size >= 8; size -= 8, data += 8) {
            sum = zk_sums[7][(sum ^ data[0]) & 255] ^ zk_sums[6][(sum >> 8 ^ data[1]) & 255]
                ^ zk_sums[5][(sum >> 16 ^ data[2]) & 255] ^ zk_sums[4][sum >> 24 ^ data[3]]
                ^ zk_sums[3][data[4]] ^ zk_sums[2][data[5]] ^ zk_sums[1][data[6]] ^ zk_sums[0][data[7]];
        }
        for (; size; size--, data++) sum = sum >> 8 ^ zk_sums[0][(sum ^ *data) & 255];
        return sum;
    }

    #if defined(__x86_64__) && (defined(__GNUC__) || defined(__clang__))
    #include <nmmintrin.h>
    #define zk_has_instruction() __builtin_cpu_supports("sse4.2")

    static inline uint32_t zk_over_block(uint32_t sum) {
        return zk_moved[0][sum & 255] ^ zk_moved[1][sum >> 8 & 255] ^ zk_moved[2][sum >> 16 & 255] ^ zk_moved[3][sum >> 24];
    }

    /* The instruction takes three cycles, and begins in each of them: so three blocks are summed at a time. Most of the
       time is for memory that no cache holds, which is asked for ahead. That may lie behind the end: it is not read. */
    __attribute__((target("sse4.2")))
    static uint32_t zk_sum_by_processor(uint32_t sum, const unsigned char *data, size_t size) {
        for (; size >= 3 * ZK_BLOCK; size -= 3 * ZK_BLOCK, data += 3 * ZK_BLOCK) {
            uint64_t first = sum, second = 0, third = 0, words[3];
            const unsigned char *ahead = data + 6 * ZK_BLOCK;
            size_t at;
            for (at = 0; at < ZK_BLOCK; at += 8) {
                if (at % 64 == 0) {
                    __builtin_prefetch(ahead + at);
                    __builtin_prefetch(ahead + at + ZK_BLOCK);
                    __builtin_prefetch(ahead + at + 2 * ZK_BLOCK);
                }
                memcpy(&words[0], data + at, 8);
                memcpy(&words[1], data + ZK_BLOCK + at, 8);
                memcpy(&words[2], data + 2 * ZK_BLOCK + at, 8);
                first = _mm_crc32_u64(first, words[0]);
                second = _mm_crc32_u64(second, words[1]);
                third = _mm_crc32_u64(third, words[2]);
            }
            sum = zk_over_block(zk_over_block((uint32_t) first) ^ (uint32_t) second) ^ (uint32_t) third;
        }
        for (; size >= 8; size -= 8, data += 8) {
            uint64_t word;
            memcpy(&word, data, 8);
            sum = (uint32_t) _mm_crc32_u64(sum, word);
        }
        for (; size; size--, data++) sum = _mm_crc32_u8(sum, *data);
        return sum;
    }
    #else
    #define zk_has_instruction() 0
    #define zk_sum_by_processor zk_sum_by_table
    #endif

    static int zk_sum_prepare(void) {
        static const unsigned char zeros[ZK_BLOCK];
        uint32_t sum, bit;
        int byte, place;
        for (byte = 0; byte < 256; byte++) {
            sum = (uint32_t) byte;
            for (bit = 0; bit < 8; bit++) sum = sum >> 1 ^ (sum & 1 ? 0x82F63B78u : 0);
            zk_sums[0][byte] = sum;
        }
        for (place = 1; place < 8; place++)
            for (byte = 0; byte < 256; byte++) {
                sum = zk_sums[place - 1][byte];
                zk_sums[place][byte] = sum >> 8 ^ zk_sums[0][sum & 255];
            }
        for (place = 0; place < 4; place++)
            for (byte = 0; byte < 256; byte++)
                zk_moved[place][byte] = zk_sum_by_table((uint32_t) byte << 8 * place, zeros, ZK_BLOCK);
        return zk_has_instruction() != 0;
    }
    """
    bint prepare "zk_sum_prepare"() noexcept
    uint32_t by_processor "zk_sum_by_processor"(uint32_t before, const unsigned char* data, size_t size) noexcept
    uint32_t by_table "zk_sum_by_table"(uint32_t before, const unsigned char* data, size_t size) noexcept
