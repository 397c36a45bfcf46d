package reput.accelerator;

import java.io.Serializable;
import java.util.HashSet;
import java.util.List;
import java.util.Set;

/**
 * Conditions on records.
 *
 * @param topics selected topics; null for all
 * @param queueIds selected queue ids; null for all
 * @param hiddenTopics topics that are left out
 * @param hiddenFlags bits of SYSFLAG; a record with any of them is left out
 */
record Selection(
    Set<String> topics, Set<Integer> queueIds, Set<String> hiddenTopics, int hiddenFlags)
    implements Serializable {

  static Selection of(Plan plan) {
    return new Selection(setOf(plan.topics()), null, setOf(plan.hiddenTopics()), plan.hiddenFlags());
  }

  Selection withTopics(Set<?> wanted) {
    return new Selection(common(topics, wanted), queueIds, hiddenTopics, hiddenFlags);
  }

  Selection withQueueIds(Set<?> wanted) {
    return new Selection(topics, common(queueIds, wanted), hiddenTopics, hiddenFlags);
  }

  private static Set<String> setOf(List<String> values) {
    return values == null ? null : new HashSet<>(values);
  }

  @SuppressWarnings("unchecked")
  private static <T> Set<T> common(Set<T> present, Set<?> wanted) {
    Set<T> result = new HashSet<>((Set<T>) wanted);
    if (present != null) {
      result.retainAll(present);
    }
    return result;
  }
}
