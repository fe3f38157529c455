// The tick's launches as host code, over the same headers and the same plans: what a GPU does, without one.
#if defined(ROW)
#include "tick/row.cuh"
using namespace robocache;

extern "C" void tick_row(const RowTarget* plan, const RowTask* tasks, const WindowTask* windows, int streams, int count) {
  for (int s = 0; s < streams; ++s)
    for (int i = 0; i < tasks[s].width; ++i) {
      const int column = tasks[s].column + i;
      plan->row[column] = plan->again[column] = plan->host[column] = value_at(tasks[s], i);
    }
  for (int s = 0; s < count; ++s)
    for (int i = 0; i < windows[s].width; ++i) {
      const int column = windows[s].column + i;
      plan->row[column] = plan->again[column] = plan->host[column] = window_value(windows[s], i);
    }
  for (int i = 0; i < plan->statuses; ++i)
    plan->row[plan->values + i] = plan->again[plan->values + i] = plan->status[i];
}
#else
#include "tick/tasks.cuh"
using namespace robocache;

static bool filled(const Target& target) {
  if (target.action == KEEP) memcpy(target.out, target.before, target.bytes);
  else memset(target.out, 0, target.bytes);
  return target.action != MAKE;
}

#if defined(IMAGE)
template <int FAMILY, int RESIZE>
static void convert(const ImageTask& task) {
  const ConvertArguments& c = task.convert;
  for (int y = 0; y < c.height; ++y)
    for (int x = 0; x < c.width; ++x)
      convert_pixel<FAMILY, RESIZE>(c.image, c.affine, x, y, c.width, c.height, task.target.out, c.element);
}

extern "C" void tick_image(const ImageTask* task, int family, int resize) {
  if (filled(task->target)) return;
#define CASE(FAMILY, RESIZE) if (family == FAMILY && resize == RESIZE) convert<FAMILY, RESIZE>(*task);
#define CASES(FAMILY) CASE(FAMILY, NEAREST) CASE(FAMILY, BILINEAR) CASE(FAMILY, AREA)
  CASES(PACKED) CASES(YUV422) CASES(NV12) CASES(BAYER) CASES(U16) CASES(F32)
}
#else
#include REDUCTION

extern "C" void tick_cloud(const CloudTask* task) {
  if (filled(task->target)) return;
#if FEATURES
  const int64 cells = task->cells;
  auto* terms = reinterpret_cast<Reduction::Term*>(task->sums);
  int64* count = task->sums + FEATURES * cells;
  for (int64 i = 0; i < cells * FEATURES; ++i) terms[i] = Reduction::NONE;
  for (int64 i = 0; i < cells; ++i) count[i] = 0;
#endif
  for (int64 i = 0; i < task->clouds.count; ++i) {
    const unsigned char* bytes = point_at(task->clouds, 0, i);
    const Point point = to_grid(task->clouds, read_point(task->clouds, bytes));
    const int cell = place(task->clouds, bytes, point);
    if (cell < 0) continue;
#if FEATURES
    ++count[cell];
    for (int f = 0; f < FEATURES; ++f) {
      const float value = feature_at(task->clouds, bytes, point, f);
      Reduction::combine_at(terms + f * cells + cell, Reduction::term(value, task->scale, task->limit));
    }
#else
    Reduction::put({task->target.out, 0, task->clouds.shape[2], false}, cell, 1);
#endif
  }
#if FEATURES
  for (int64 i = 0; i < cells * FEATURES; ++i)
    if (count[i % cells])
      static_cast<float*>(task->target.out)[i] = Reduction::finished(terms[i], count[i % cells], task->unit);
#endif
}
#endif
#endif
