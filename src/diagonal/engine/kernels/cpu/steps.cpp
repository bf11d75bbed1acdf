// What a decode step does beside layers, attention and sampling: read its row of the plan's table, look tokens up, and
// turn positions into angles. Twins of the functions of these names in reference.py.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>

namespace {

// Arguments come from Python as 64-bit numbers, in this order. Whole numbers are int64 where nothing else is said.
struct NextStep {
    const int64_t* rows;
    int64_t width;  // numbers of a row; the last is the number of the step
    int64_t* cursor;
    const int32_t* fed;  // (L,)
    int64_t length;
    const int64_t* tokens;
    int64_t tokens_row, batch, inputs;
    int64_t *row, *read;  // (width,), (B, S)
    int32_t* needed;      // (L,)
    int64_t nowhere;
};

struct LiveStep {
    const int64_t* rows;  // of 3 * inputs + 1
    int64_t* cursor;
    const int64_t* tokens;
    int64_t tokens_row;
    const int64_t *rows_B, *own_B, *before_B, *position_B, *video_B, *filled_B, *fed;
    int64_t batch, inputs, length, prefix, unit, places;
    int64_t *relative, *made;  // (S,), (5, B, S): tokens, slots, positions, where to write, numbers in the video
    int32_t* needed;           // (B, L)
    int64_t* blocks;           // (2, B)
    int64_t unused, everybody, nowhere, block;

    // The slot of a cell of sample b's frame, or of the one before.
    int64_t place(int64_t b, int64_t number) const {
        return number < 0 ? before_B[b] + unit + number : own_B[b] + number;
    }
};

struct LiveWindow {
    const int64_t* tokens;
    int64_t tokens_row;
    const int64_t *rows_B, *own_B, *before_B, *position_B, *video_B, *filled_B, *next_B;
    int64_t batch, inputs, length, prefix, unit, places, first, last;
    int64_t* made;    // (6, B, S): tokens, slots, positions, where to write, numbers in the video, numbers in the frame
    int32_t* needed;  // (B, L)
    int64_t* blocks;  // (2, B)
    int64_t everybody, nowhere, block;

    // The slot of a cell of sample b's frame, or of the one before.
    int64_t place(int64_t b, int64_t number) const {
        return number < 0 ? before_B[b] + unit + number : own_B[b] + number;
    }
};

struct Settle {
    const int64_t* tokens;
    int64_t tokens_row;
    const int64_t* rows_B;
    int64_t batch, inputs;
    const int64_t *fed, *slots;  // (B, S)
    int64_t* next_B;
    int64_t last;
};

struct GatherRows {
    const char* tables;  // (T, L, C)
    int64_t count, length, bytes;  // T, L, bytes of a row
    const int64_t* ids;
    int64_t size;
    char* out;  // (T, N, C)
};

struct Rope {
    const int64_t* positions;
    int64_t count;
    const float* frequencies;
    int64_t half;
    float *cos, *sin;  // (N, 2 * half)
};

void see(const LiveStep& asked, int64_t b, int64_t step, int64_t end) {
    int32_t* needed = asked.needed + b * asked.length;
    std::fill(needed, needed + end, int32_t(asked.everybody));
    std::fill(needed + end, needed + asked.length, int32_t(asked.nowhere));
    const auto tell = [&](int64_t first, int64_t least) {
        for (int64_t cell = 0; cell < asked.unit && first + cell < end; cell++) {
            const int64_t number = least + cell;
            needed[first + cell] = int32_t(asked.fed[asked.unit + number] <= step ? number : asked.nowhere);
        }
    };
    tell(asked.before_B[b], -asked.unit);
    tell(asked.own_B[b], 0);
}

}  // namespace

extern "C" {

void diagonal_next_step(const void* given) {
    const NextStep& asked = *static_cast<const NextStep*>(given);
    const int64_t* row = asked.rows + *asked.cursor * asked.width;
    ++*asked.cursor;
    std::copy(row, row + asked.width, asked.row);
    for (int64_t b = 0; b < asked.batch; b++)
        for (int64_t s = 0; s < asked.inputs; s++)
            asked.read[b * asked.inputs + s] = asked.tokens[b * asked.tokens_row + row[s]];
    const int64_t step = row[asked.width - 1];
    for (int64_t slot = 0; slot < asked.length; slot++)
        asked.needed[slot] = asked.fed[slot] > step ? int32_t(asked.nowhere) : int32_t(slot);
}

void diagonal_live_step(const void* given) {
    const LiveStep& asked = *static_cast<const LiveStep*>(given);
    const int64_t inputs = asked.inputs, all = asked.batch * inputs;
    const int64_t *read = asked.rows + *asked.cursor * (3 * inputs + 1), *cell = read + inputs, *write = cell + inputs;
    ++*asked.cursor;
    std::copy(cell, cell + inputs, asked.relative);
    for (int64_t b = 0; b < asked.batch; b++) {
        const int64_t end = asked.prefix + std::min(asked.filled_B[b], asked.places) * asked.unit;
        see(asked, b, write[inputs], end);
        asked.blocks[b] = std::min({asked.own_B[b], asked.before_B[b], end}) / asked.block;
        asked.blocks[asked.batch + b] = (end + asked.block - 1) / asked.block;
        for (int64_t s = 0; s < inputs; s++) {
            int64_t* to = asked.made + b * inputs + s;
            to[0] = asked.tokens[asked.rows_B[b] * asked.tokens_row + asked.place(b, read[s])];
            to[all] = asked.place(b, cell[s]);
            to[2 * all] = asked.position_B[b] + cell[s];
            to[3 * all] = write[s] == asked.unused ? asked.length : asked.place(b, write[s]);
            to[4 * all] = asked.video_B[b] + write[s];
        }
    }
}

void diagonal_live_window(const void* given) {
    const LiveWindow& asked = *static_cast<const LiveWindow*>(given);
    const int64_t inputs = asked.inputs, all = asked.batch * inputs;
    for (int64_t b = 0; b < asked.batch; b++) {
        const int64_t end = asked.prefix + std::min(asked.filled_B[b], asked.places) * asked.unit;
        int32_t* needed = asked.needed + b * asked.length;
        std::fill(needed, needed + end, int32_t(asked.everybody));
        std::fill(needed + end, needed + asked.length, int32_t(asked.nowhere));
        const auto number = [&](int64_t first, int64_t least) {
            for (int64_t cell = 0; cell < asked.unit && first + cell < end; cell++)
                needed[first + cell] = int32_t(least + cell);
        };
        number(asked.before_B[b], -asked.unit);
        number(asked.own_B[b], 0);
        asked.blocks[b] = std::min({asked.own_B[b], asked.before_B[b], end}) / asked.block;
        asked.blocks[asked.batch + b] = (end + asked.block - 1) / asked.block;
        for (int64_t s = 0; s < inputs; s++) {
            const bool useful = asked.next_B[b] + s < asked.last;
            const int64_t cell = asked.next_B[b] + (useful ? s : 0), slot = asked.place(b, cell);
            int64_t* to = asked.made + b * inputs + s;
            to[0] = asked.tokens[asked.rows_B[b] * asked.tokens_row + slot];
            to[all] = slot;
            to[2 * all] = asked.position_B[b] + cell;
            to[3 * all] = useful && cell + 1 >= asked.first ? asked.place(b, cell + 1) : asked.length;
            to[4 * all] = asked.video_B[b] + cell + 1;
            to[5 * all] = cell;
        }
    }
}

void diagonal_settle(const void* given) {
    const Settle& asked = *static_cast<const Settle*>(given);
    for (int64_t b = 0; b < asked.batch; b++) {
        const int64_t* tokens = asked.tokens + asked.rows_B[b] * asked.tokens_row;
        const int64_t first = b * asked.inputs;
        int64_t right = 1;
        while (right < asked.inputs && tokens[asked.slots[first + right]] == asked.fed[first + right]) right++;
        asked.next_B[b] = std::min(asked.next_B[b] + right, asked.last);
    }
}

void diagonal_gather_rows(const void* given) {
    const GatherRows& asked = *static_cast<const GatherRows*>(given);
    for (int64_t t = 0; t < asked.count; t++)
        for (int64_t n = 0; n < asked.size; n++) {
            const int64_t id = asked.ids[n] < 0 ? asked.ids[n] + asked.length : asked.ids[n];
            char* to = asked.out + (t * asked.size + n) * asked.bytes;
            if (id < 0 || id >= asked.length) std::memset(to, 0xff, asked.bytes);  // NaN
            else std::memcpy(to, asked.tables + (t * asked.length + id) * asked.bytes, asked.bytes);
        }
}

void diagonal_rope(const void* given) {
    const Rope& asked = *static_cast<const Rope*>(given);
    constexpr double TURN = 6.283185307179586;
    for (int64_t n = 0; n < asked.count; n++)
        for (int64_t i = 0; i < asked.half; i++) {
            const double angle = double(asked.positions[n]) * double(asked.frequencies[i]);
            const float rest = float(angle - std::floor(angle / TURN) * TURN);
            const int64_t at = n * 2 * asked.half + i;
            asked.cos[at] = asked.cos[at + asked.half] = std::cos(rest);
            asked.sin[at] = asked.sin[at + asked.half] = std::sin(rest);
        }
}

// Calls of functions of this library that were noted, in their order.
struct Call {
    void (*function)(const void*);
    const void* asked;
};

void diagonal_replay(const Call* calls, int64_t count) {
    for (int64_t i = 0; i < count; i++) calls[i].function(calls[i].asked);
}

}  // extern "C"
