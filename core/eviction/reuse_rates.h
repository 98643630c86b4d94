// How often blocks of each class are used again, by age: learned online, censoring included (a
// block that waits, or is forgotten, counts for the time it was seen).
//
// Thread safety: none (the owner's lock). Time and weights are in units of 512 tokens.
#pragma once

#include <array>
#include <vector>

namespace ibid {

class ReuseRates {
 public:
  static constexpr int kClassesCount = 11;
  static constexpr int kAgesCount = 18;

  ReuseRates();

  // The age at which `age` begins; that of kAgesCount is infinite.
  static double BeginOf(int age);

  void CountReuse(int block_class, int age, double weight);
  // `weight` is of this class and age from `now` on.
  void Enter(int block_class, int age, double weight, double now);
  // Of it, `weight`, which entered at `entered_at` on average, is no more at `now`.
  void Leave(int block_class, int age, double weight, double entered_at, double now);

  // Forgets half of what was learned by time `half_life`.
  void Decay(double elapsed, double half_life);
  // Computes hazard and index anew.
  void Refresh(double now);

  // Reuses per block and unit of time.
  double hazard(int block_class, int age) const { return hazard_[block_class][age]; }
  // Reuses per block and unit of time held, up to the best moment to give up.
  double index(int block_class, int age) const { return index_[block_class][age]; }

 private:
  struct Cell {
    double reuses = 0;
    double exposure = 0;  // weight * time, of what has left
    double weight = 0;    // that is there
    double entered = 0;   // sum of weight * time of entry
    double ExposureAt(double now) const { return exposure + weight * now - entered; }
  };
  using Table = std::array<std::array<double, kAgesCount>, kClassesCount>;

  std::array<double, kAgesCount> PooledHazard(double now) const;
  void ComputeIndex(int block_class);

  std::array<std::array<Cell, kAgesCount>, kClassesCount> cells_;
  Table hazard_;
  Table index_;
};

}  // namespace ibid
